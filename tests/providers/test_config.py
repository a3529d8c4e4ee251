"""How a provider is written, and what is said about one that is written wrongly."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from policyengine import UsageError
from policyengine.messages import ModelRequest, ModelResponse
from policyengine.providers import config, registry
from policyengine.providers.config import Fallback, Provider, as_provider, key_of, presets
from policyengine.providers.registry import BUILT_IN, connect, known_protocols


def test_a_preset_and_a_model_make_a_provider_and_changes_win():
    made = as_provider("deepseek:deep-1", base_url="http://127.0.0.1:1", stream=True)
    assert (made.protocol, made.model, made.base_url, made.stream) == (
        "openai_chat",
        "deep-1",
        "http://127.0.0.1:1",
        True,
    )
    assert made.api_key_env == "DEEPSEEK_API_KEY"
    assert as_provider(made) == made


def test_a_model_may_hold_colons():
    assert as_provider("ollama:qwen3:8b").model == "qwen3:8b"


def test_a_file_holds_one_provider(tmp_path):
    path = tmp_path / "local.yaml"
    path.write_text(
        "preset: vllm\nmodel: m\noptions: {temperature: 0}\n"
        "fallbacks:\n- {use: 'ollama:n', after: 1, errors: [timeout]}\n"
    )
    made = as_provider(str(path))
    assert made.options == {"temperature": 0}
    assert made.fallbacks == (Fallback("ollama:n", 1, ("timeout",)),)


def test_every_preset_is_a_provider_of_a_protocol_that_there_is():
    for name in presets():
        assert as_provider(f"{name}:m").protocol in BUILT_IN


@pytest.mark.parametrize(
    ("value", "changes", "reason"),
    [
        ("opnai:m", {}, "did you mean .openai"),
        ("gpt-x", {}, "preset:model"),
        ("openai:", {}, "preset:model"),
        ({"preset": "openai", "model": "m", "bse_url": "x"}, {}, "did you mean .base_url"),
        ({"protocol": "openai_chat"}, {}, "model"),
        ({"protocol": "openai_chat", "model": ""}, {}, "needs a model"),
        ({"protocol": "openai_chat", "model": "m", "timeout_s": 0}, {}, "above 0"),
        ({"protocol": "openai_chat", "model": "m", "stream": "yes"}, {}, "bool"),
        (
            {"protocol": "openai_chat", "model": "m", "fallbacks": [{"use": "a:b", "errors": ["overload"]}]},
            {},
            "overloaded",
        ),
        ({"protocol": "openai_chat", "model": "m", "fallbacks": [{"use": "a:b", "after": 0}]}, {}, "1 failure"),
        ("none.yaml", {}, "cannot read"),
        (5, {}, "not int"),
    ],
)
def test_what_is_no_provider_is_refused_with_what_may_have_been_meant(value, changes, reason):
    with pytest.raises(UsageError, match=reason):
        as_provider(value, **changes)


def test_a_file_that_holds_no_mapping_is_refused(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text("- a\n")
    with pytest.raises(UsageError, match="not list"):
        as_provider(str(path))


def test_an_unknown_protocol_is_refused_with_those_that_there_are():
    with pytest.raises(UsageError, match=r"did you mean .openai_chat.*anthropic_messages"):
        connect({"protocol": "openai_chta", "model": "m"})


def test_a_key_that_is_not_set_is_named_and_a_provider_without_one_gets_a_placeholder(monkeypatch):
    monkeypatch.delenv("ACME_KEY", raising=False)
    with pytest.raises(UsageError, match="ACME_KEY is not set"):
        key_of(Provider("openai_chat", "m", api_key_env="ACME_KEY"))
    assert key_of(Provider("openai_chat", "m")) == config.NO_KEY


def test_a_package_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    from policyengine.providers import sdk

    def missing(name: str):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sdk, "import_module", missing)
    for protocol, extra in (
        ("openai_chat", "openai"),
        ("openai_responses", "openai"),
        ("anthropic_messages", "anthropic"),
    ):
        with pytest.raises(UsageError, match=rf"pip install 'agent-policyengine\[{extra}\]'"):
            connect({"protocol": protocol, "model": "m"})


class Parrot:
    """A protocol of an installed package."""

    def __init__(self, provider: Provider) -> None:
        self.name = provider.model

    def complete(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse(request.messages[-1].text)


def installed(monkeypatch, value: str, name: str = "parrot") -> None:
    entry = EntryPoint(name, value, registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == registry.GROUP else [])


def test_an_installed_package_adds_a_protocol(monkeypatch):
    monkeypatch.setattr(registry, "_installed", lambda: {"parrot": Loaded()})
    model = connect({"protocol": "parrot", "model": "polly"})
    assert model.name == "polly"
    assert known_protocols()[-1] == "parrot"


class Loaded:
    dist = None
    value = "here"

    def load(self):
        return Parrot


@pytest.mark.parametrize(
    ("value", "reason"),
    [("no_such_module:x", "cannot be imported: ModuleNotFoundError"), ("math:pi", "nobody can call")],
)
def test_a_package_whose_protocol_cannot_be_used_is_named(monkeypatch, value, reason):
    installed(monkeypatch, value)
    with pytest.raises(UsageError, match=reason):
        connect({"protocol": "parrot", "model": "m"})


def test_an_installed_protocol_does_not_hide_one_that_is_built_in(monkeypatch):
    installed(monkeypatch, "math:pi", "openai_chat")
    assert known_protocols() == tuple(BUILT_IN)


def test_fallbacks_are_one_list(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_installed", lambda: {"parrot": Loaded()})
    path = tmp_path / "itself.yaml"
    path.write_text(f"protocol: parrot\nmodel: m\nfallbacks: [{{use: {path}}}]\n")
    with pytest.raises(UsageError, match="put them into one list"):
        connect(str(path))
    second = {"protocol": "parrot", "model": "n"}
    model = connect({"protocol": "parrot", "model": "m", "fallbacks": [{"use": second}]})
    assert (type(model).__name__, model.name) == ("FallbackModel", "m")


def test_nothing_of_an_sdk_is_imported_before_a_model_is_wanted():
    names = "import policyengine, policyengine.cli.run, policyengine.providers, policyengine.tools, sys; "
    shown = "print([name for name in ('openai', 'anthropic', 'mcp', 'httpx', 'pydantic') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", names + shown], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
