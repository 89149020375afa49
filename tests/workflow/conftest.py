"""A working directory per module, in which the repository's workflow runs."""

import pytest
from snakemake_runs import Workflow


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """Return the workflow in an empty folder."""
    return Workflow(tmp_path_factory.mktemp("workflow"))
