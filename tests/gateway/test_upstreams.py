"""Any service that speaks like one of the three, under a name of one's own; and what a model costs that nobody knows."""

from __future__ import annotations

import time
from typing import Any

import anthropic
import httpx
import openai
import pytest

from provider import WORD, Behaviour
from runguard_process import run_cli
from test_gateway import CHAT, HELLO, MESSAGES, chat, raw, reserved, spent


def key_of(server: Any) -> str:
    """A key for callers, once the gateway knows of it."""
    made = run_cli("key", "create", "--data", server.data, "--role", "guard")
    key = next(word for word in made.stdout.split() if word.startswith("rg_"))
    deadline = time.monotonic() + 10
    while httpx.get(f"{server.url}/openai/v1/models").status_code != 401 and time.monotonic() < deadline:
        time.sleep(0.05)
    return key


def test_a_service_of_ones_own_is_reached_under_its_name(gateway: Any, provider: Any) -> None:
    config = (f'[gateway.upstreams.deepseek]\nurl = "{provider.url}/v1"\nkey_env = "DEEPSEEK_API_KEY"\n'
              f'[gateway.upstreams.ollama]\nurl = "{provider.url}/v1"\n'
              f'[gateway.upstreams.kimi]\nurl = "{provider.url}"\nspeaks = "anthropic"\nkey_env = "KIMI_KEY"\n')
    server = gateway("--max-usd-per-run", "1", config=config, environment={"DEEPSEEK_API_KEY": "sk-deep", "KIMI_KEY": "sk-kimi"})
    provider.behaviour = Behaviour(tokens=1000, input_tokens=1000)
    own = openai.OpenAI(base_url=f"{server.url}/deepseek/v1", api_key="sk-own")
    answer = own.chat.completions.create(model="deepseek-chat", messages=HELLO, max_tokens=1000, extra_headers={"x-runguard-run": "d"})
    assert answer.choices[0].message.content == WORD * 1000
    assert (provider.asked[-1].path, provider.asked[-1].headers["authorization"]) == ("/v1/chat/completions", "Bearer sk-own")
    assert spent(server, "d") > 0
    assert [model.id for model in own.models.list()] == ["gpt-4o"]
    key = key_of(server)
    openai.OpenAI(base_url=f"{server.url}/deepseek", api_key=key).chat.completions.create(model="deepseek-chat", messages=HELLO, max_tokens=9)
    assert provider.asked[-1].headers["authorization"] == "Bearer sk-deep", "the operator's"
    anthropic.Anthropic(base_url=f"{server.url}/kimi", api_key=key).messages.create(model=MESSAGES, max_tokens=9, messages=HELLO)
    assert (provider.asked[-1].path, provider.asked[-1].headers["x-api-key"]) == ("/v1/messages", "sk-kimi")
    openai.OpenAI(base_url=f"{server.url}/ollama/v1", api_key=key).chat.completions.create(model="ollama/llama3", messages=HELLO, max_tokens=9)
    assert "authorization" not in provider.asked[-1].headers, "one without a key of its own gets none, and never ours"
    stolen = httpx.get(f"{server.url}/ollama/v1/files", headers={"authorization": f"Bearer {key}"})
    assert (stolen.status_code, stolen.json()["error"]["code"]) == (404, "route_not_shared")
    removed = httpx.delete(f"{server.url}/ollama/v1/models/llama3", headers={"x-runguard-key": key, "authorization": "Bearer invented"})
    assert (removed.status_code, removed.json()["error"]["code"]) == (404, "route_not_shared"), "where no key is needed, one says nothing"
    spending = httpx.get(f"{server.url}/v1/spend", params={"by": "upstream"}, headers={"authorization": f"Bearer {key_with('read', server)}"})
    assert {"deepseek", "kimi", "ollama"} <= set(str(spending.json()).replace("'", " ").split()), spending.json()


def key_with(role: str, server: Any) -> str:
    made = run_cli("key", "create", "--data", server.data, "--role", role)
    key = next(word for word in made.stdout.split() if word.startswith("rg_"))
    deadline = time.monotonic() + 10
    while httpx.get(f"{server.url}/v1/stats", headers={"authorization": f"Bearer {key}"}).status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    return key


def azure_settings(url: str) -> str:
    return (f'[gateway.upstreams.azure]\nurl = "{url}/openai/v1"\nkey_env = "AZURE_KEY"\nkey_header = "api-key"\napi_version = "2024-10-21"\n'
            'models."my-deployment" = "gpt-4o"\n[gateway.fallbacks]\n"my-deployment" = ["my-other"]\n')


def test_azure_names_a_deployment_in_the_path_and_a_version_in_the_query(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1", config=azure_settings(provider.url), environment={"AZURE_KEY": "azure-secret"})
    provider.behaviour = Behaviour(tokens=1000, input_tokens=1000)
    azure = openai.AzureOpenAI(azure_endpoint=f"{server.url}/azure", api_key="own", api_version="2025-01-01-preview")
    answer = azure.chat.completions.create(model="my-deployment", messages=HELLO, max_tokens=1000, extra_headers={"x-runguard-run": "a"})
    assert answer.choices[0].message.content == WORD * 1000
    assert provider.asked[-1].path == "/openai/deployments/my-deployment/chat/completions?api-version=2025-01-01-preview"
    assert provider.asked[-1].headers["api-key"] == "own"
    assert spent(server, "a") == pytest.approx(0.0125), "at the price of gpt-4o"
    pieces = azure.chat.completions.create(model="my-deployment", messages=HELLO, max_tokens=1000, stream=True, extra_headers={"x-runguard-run": "a"})
    assert sum(len(piece.choices) for piece in pieces) > 1000
    with pytest.raises(openai.APIStatusError) as refused:
        azure.chat.completions.create(model="unknown-deployment", messages=HELLO)
    assert (refused.value.status_code, refused.value.body["code"]) == (402, "unknown_model")
    key = key_of(server)
    ours = openai.AzureOpenAI(azure_endpoint=f"{server.url}/azure", api_key=key, api_version="2025-01-01-preview")
    ours.chat.completions.create(model="my-deployment", messages=HELLO, max_tokens=10)
    assert provider.asked[-1].headers["api-key"] == "azure-secret" and "authorization" not in provider.asked[-1].headers
    openai.OpenAI(base_url=f"{server.url}/azure/v1", api_key=key).chat.completions.create(model="my-deployment", messages=HELLO, max_tokens=10)
    assert provider.asked[-1].path == "/openai/v1/chat/completions?api-version=2024-10-21", "for callers that send none"
    assert server.files_containing("azure-secret") == []


def test_a_deployment_falls_back_to_another_in_the_path(gateway: Any, provider: Any) -> None:
    server = gateway(config=azure_settings(provider.url))
    provider.behaviour = Behaviour(failing={"my-deployment": 503})
    azure = openai.AzureOpenAI(azure_endpoint=f"{server.url}/azure", api_key="own", api_version="v1", max_retries=0)
    answer = azure.chat.completions.with_raw_response.create(model="my-deployment", messages=HELLO)
    assert answer.headers["x-runguard-model"] == "my-other"
    assert [asked.path.split("/")[3] for asked in provider.asked] == ["my-deployment", "my-other"]


@pytest.mark.parametrize(("policy", "cost"), [('{ price_as = "gpt-4o" }', 0.0125), ('"free"', 0.0), ('"allow"', 0.0)])
def test_a_model_that_nobody_knows_costs_what_the_settings_say(gateway: Any, provider: Any, policy: str, cost: float) -> None:
    server = gateway("--max-usd-per-run", "0.05", config=f"[guards.budget]\nunknown_models = {policy}\n")
    provider.behaviour = Behaviour(tokens=1000, input_tokens=1000)
    answer = raw(f"{server.url}/openai/v1/chat/completions", {"model": "nobody-knows-it", "messages": HELLO, "max_tokens": 1000}, **{"x-runguard-run": "u"})
    assert answer.status_code == 200
    assert (spent(server, "u"), reserved(server, "u")) == (pytest.approx(cost), 0)
    if cost:
        provider.behaviour = Behaviour(tokens=100_000, input_tokens=10)
        raw(f"{server.url}/openai/v1/chat/completions", {"model": "nobody-knows-it", "messages": HELLO}, **{"x-runguard-run": "u"})
        assert provider.bodies[-1]["max_tokens"] < 4000, "a question without a bound gets one that is paid for"
        assert spent(server, "u") <= 0.05


def test_the_default_refuses_only_where_dollars_are_limited(gateway: Any, provider: Any) -> None:
    server = gateway()
    assert chat(server).chat.completions.create(model="nobody-knows-it", messages=HELLO).choices
    assert chat(server).chat.completions.create(model=CHAT, messages=HELLO).choices


def test_a_price_of_a_model_without_one_is_a_mistake(gateway: Any, tmp_path: Any) -> None:
    settings = tmp_path / "wrong.toml"
    settings.write_text('[guards.budget]\nunknown_models = { price_as = "nobody-knows-it" }\n')
    checked = run_cli("settings", "check", str(settings))
    assert checked.returncode != 0 and "price_as must be a model that has a price" in checked.stderr + checked.stdout


def test_a_providers_key_comes_from_a_file_and_is_taken_over_when_it_changes(gateway: Any, provider: Any, tmp_path: Any) -> None:
    secret = tmp_path / "openai-key"
    secret.write_text("sk-from-a-file\n")
    secret.chmod(0o644)
    server = gateway(config=f'[gateway.upstreams.openai]\nkey_file = "{secret}"\n', environment={"OPENAI_API_KEY": "sk-of-the-environment"})
    assert f"chmod 600 {secret}" in server.log(), "others can read it, which is said at the start"
    client = openai.OpenAI(base_url=f"{server.url}/openai/v1", api_key=key_of(server), max_retries=0)
    client.chat.completions.create(model=CHAT, messages=HELLO)
    assert provider.asked[-1].headers["authorization"] == "Bearer sk-from-a-file"
    for broken in ("", "sk-one-of-two\nsk-two-of-two\n"):
        secret.write_text(broken)
        time.sleep(0.6)
        client.chat.completions.create(model=CHAT, messages=HELLO)
        assert provider.asked[-1].headers["authorization"] == "Bearer sk-from-a-file", "being written"
    assert "it has several lines" in server.log()
    secret.write_text("sk-made-anew\n")
    deadline = time.monotonic() + 10
    while provider.asked[-1].headers["authorization"] != "Bearer sk-made-anew" and time.monotonic() < deadline:
        client.chat.completions.create(model=CHAT, messages=HELLO)
    assert provider.asked[-1].headers["authorization"] == "Bearer sk-made-anew"
    shown = run_cli("settings", "show", "--config", str(server.config_file))
    assert str(secret) in shown.stdout and shown.returncode == 0, shown.stderr
    for text in (server.log(), shown.stdout):
        assert "sk-from-a-file" not in text and "sk-made-anew" not in text
    assert server.files_containing("sk-from-a-file", "sk-made-anew") == []


def test_a_key_file_that_is_not_there_is_said_and_asks_nobody(gateway: Any, provider: Any, tmp_path: Any) -> None:
    server = gateway(config=f'[gateway.upstreams.openai]\nkey_file = "{tmp_path}/nothing"\n')
    assert f"{tmp_path}/nothing" in server.log()
    with pytest.raises(openai.APIStatusError) as refused:
        openai.OpenAI(base_url=f"{server.url}/openai/v1", api_key=key_of(server), max_retries=0).chat.completions.create(model=CHAT, messages=HELLO)
    assert (refused.value.status_code, refused.value.body["code"], provider.asked) == (503, "no_provider_key", [])


def test_a_client_with_a_wrong_base_url_is_told_the_right_one(gateway: Any) -> None:
    server = gateway()
    with pytest.raises(openai.NotFoundError) as chat:
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="k").chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "hi"}]
        )
    assert "/openai/v1 behind it" in chat.value.message
    with pytest.raises(anthropic.NotFoundError) as message:
        anthropic.Anthropic(base_url=server.url, api_key="k").messages.create(
            model="claude-sonnet-4-6", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        )
    assert "/anthropic behind it" in message.value.message
    assert httpx.post(f"{server.url}/v1/never").json()["type"].endswith("not-found")
