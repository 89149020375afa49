// Shows only the runs of the chosen model, policy and seed; a group without any is hidden too.
for (const form of document.querySelectorAll("form.filter")) {
  const section = form.closest("section");
  const runs = [...section.querySelectorAll("[data-model]")];
  const groups = [...section.querySelectorAll(".group")];
  const choices = [...form.querySelectorAll("select")];
  const apply = () => {
    for (const run of runs) {
      run.hidden = choices.some((c) => c.value !== "" && run.dataset[c.name] !== c.value);
    }
    for (const group of groups) {
      group.hidden = !group.querySelector("[data-model]:not([hidden])");
    }
    const shown = runs.filter((run) => !run.hidden).length;
    form.querySelector("output").value = `${shown} of ${runs.length} runs`;
  };
  form.addEventListener("change", apply);
  form.hidden = false;
  apply();
}
