"""Megatron's modules are the models that we mean: judged by plain PyTorch with equal weights."""

from __future__ import annotations

import pytest
import torch
from engine_fixtures import FAMILIES, random_batch, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_models import PlainModel, copy_weights, plain_names, to_plain

from cona.config import load, names
from cona.engine.losses import IGNORED, token_losses
from cona.engine.models import build_model
from cona.specs import ModelSpec

PROXIES = [n for n in names(ModelSpec) if n.endswith("-proxy")]


def _labels(batch):
    labels = torch.from_numpy(batch.labels)
    return labels.masked_fill(~torch.from_numpy(batch.loss_mask), IGNORED)


@pytest.fixture(params=FAMILIES)
def pair(request):
    """A megatron model with all weights random (norms and biases too) and its plain twin."""
    spec = tiny(request.param)
    model, plain = build_model(spec, seed=1), PlainModel(spec)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.1)
    copy_weights(spec, model, plain)
    return spec, model, plain


def test_losses_and_gradients_equal_plain_pytorch(pair):
    spec, model, plain = pair
    batch = random_batch(spec, 6)
    tokens, labels = torch.from_numpy(batch.tokens), _labels(batch)
    ours, theirs = model.losses(tokens, labels), plain.losses(tokens, labels)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    ours.mean().backward()
    theirs.mean().backward()
    gradients = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        expected = gradients[plain_names(spec)[name]].grad
        torch.testing.assert_close(
            to_plain(spec, name, parameter.grad), expected, rtol=1e-4, atol=1e-6, msg=name
        )


def test_causal_models_do_not_look_ahead_and_bert_does(pair):
    spec, model, _ = pair
    batch = random_batch(spec, 1)
    tokens, labels = torch.from_numpy(batch.tokens), torch.from_numpy(batch.labels)
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % spec.vocab_size
    before, after = (model.losses(t, labels)[0, :-1] for t in (tokens, changed))
    assert torch.equal(before, after) == spec.is_causal


def test_ignored_targets_cost_nothing(pair):
    spec, model, _ = pair
    tokens = torch.from_numpy(random_batch(spec, 2).tokens)
    labels = tokens.clone()
    labels[0, 3] = IGNORED
    losses = model.losses(tokens, labels)
    assert losses[0, 3] == 0
    assert (losses == 0).sum() == 1


def test_padded_vocabulary_has_no_probability_and_no_gradient():
    # Two known tokens with equal logits: ln 2, however large the padded logits are.
    logits = torch.tensor([[[1.0, 1.0, 50.0, 50.0]]], requires_grad=True)
    loss = token_losses(logits, torch.tensor([[0]]), vocab_size=2)
    assert loss.item() == pytest.approx(0.6931472, rel=1e-6)
    loss.sum().backward()
    assert logits.grad.tolist() == [[[-0.5, 0.5, 0.0, 0.0]]]


@given(vocab=st.integers(1, 6), padding=st.integers(0, 5), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_loss_does_not_depend_on_the_padding(vocab, padding, seed):
    generator = torch.Generator().manual_seed(seed)
    known = torch.randn(3, 2, vocab, generator=generator)
    labels = torch.randint(vocab, (2, 3), generator=generator)
    padded = torch.cat([known, torch.randn(3, 2, padding, generator=generator)], dim=-1)
    expected = -known.log_softmax(-1).transpose(0, 1).gather(2, labels[..., None])[..., 0]
    torch.testing.assert_close(token_losses(padded, labels, vocab), expected)


@pytest.mark.parametrize("name", names(ModelSpec))
def test_num_params_is_the_built_model_s(name):
    spec = load(ModelSpec, name)
    with torch.device("meta"):
        model = build_model(spec, seed=0)
    assert spec.num_params == sum(p.numel() for p in model.parameters())


def test_initial_weights_follow_the_seed_alone():
    spec = tiny("gpt")
    torch.manual_seed(123)
    outside = torch.get_rng_state()
    first = build_model(spec, seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), outside)
    torch.manual_seed(7)
    second, other = (build_model(spec, seed=s).state_dict() for s in (5, 6))
    weight = "decoder.layers.1.mlp.linear_fc1.weight"
    assert torch.equal(first[weight], second[weight])
    assert not torch.equal(first[weight], other[weight])
    assert first[weight].std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("name", PROXIES)
def test_a_proxy_is_its_full_model_made_small(name):
    proxy, full = load(ModelSpec, name), load(ModelSpec, name.removesuffix("-proxy"))
    assert proxy.priced_as == full.name
    assert proxy.family == full.family
    assert proxy.dropout == 0
    assert proxy.num_params < 150_000
    ratios = [m.training.min_lr / m.training.base_lr for m in (proxy, full)]
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-12)
    groups = [m.num_kv_heads == m.num_heads for m in (proxy, full)]
    assert groups[0] == groups[1]


def test_published_sizes():
    llama = load(ModelSpec, "llama-3.2-1b")
    padding = (llama.padded_vocab_size - llama.vocab_size) * llama.hidden_size
    assert llama.num_params - padding == 1_235_814_400  # the model card's exact count
    assert load(ModelSpec, "gpt3-1.3b").num_params == pytest.approx(1.3e9, rel=0.02)
    assert load(ModelSpec, "bert-large").num_params == pytest.approx(0.336e9, rel=0.01)
