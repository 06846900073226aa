"""Real clients of OpenAI and Anthropic through the gateway: the same answers as without it, and a cap that is never passed."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import openai
import pytest

from provider import WORD, Behaviour
from runguard_process import run_cli

# gpt-4o costs 2.50 and 10.00 dollars a million tokens, claude-sonnet-4-6 3.00 and 15.00.
CHAT, MESSAGES = "gpt-4o", "claude-sonnet-4-6"
HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]


def chat(server: Any, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/openai/v1", api_key="sk-callers-own", **options)


def claude(server: Any, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=f"{server.url}/anthropic", api_key="sk-callers-own", **options)


def spent(server: Any, run: str) -> float:
    """What the books say of a run."""
    asked = urllib.request.Request(f"{server.url}/guard/budget/check", json.dumps({"session_id": run}).encode())
    return json.load(urllib.request.urlopen(asked))["spent_usd"]


def reserved(server: Any, run: str) -> float:
    asked = urllib.request.Request(f"{server.url}/guard/budget/check", json.dumps({"session_id": run}).encode())
    return json.load(urllib.request.urlopen(asked))["reserved_usd"]


def raw(url: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(url, content=json.dumps(body).encode(), headers={"content-type": "application/json", "authorization": "Bearer x", **headers}, timeout=30)


@pytest.mark.parametrize("body", [
    {"model": CHAT, "messages": HELLO},
    {"model": CHAT, "messages": HELLO, "stream": True},
    {"model": CHAT, "messages": HELLO, "stream": True, "stream_options": {"include_usage": True}},
    {"model": CHAT, "messages": HELLO, "max_tokens": 3, "temperature": 0.10, "unknown_field": {"a": [1, 2.50]}},
], ids=["whole", "stream", "stream with usage", "unknown fields"])
def test_answers_are_those_without_the_gateway_byte_for_byte(gateway: Any, provider: Any, body: dict[str, Any]) -> None:
    server = gateway()
    direct = raw(f"{provider.url}/v1/chat/completions", body)
    through = raw(f"{server.url}/openai/v1/chat/completions", body)
    assert (through.status_code, through.content) == (direct.status_code, direct.content)
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert provider.asked[0].headers["authorization"] == "Bearer x", "the caller's own key is passed on"
    if "x-request-id" in direct.headers:
        assert through.headers["x-request-id"] == direct.headers["x-request-id"], "what the provider's support asks for"


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_a_stream_in_odd_pieces_arrives_whole(gateway: Any, provider: Any, piece: int) -> None:
    server = gateway()
    for path, model in (("/openai/v1/chat/completions", CHAT), ("/openai/v1/responses", CHAT), ("/anthropic/v1/messages", MESSAGES)):
        provider.behaviour = Behaviour(tokens=8)
        body = {"model": model, "messages": HELLO, "input": "hi", "max_tokens": 50, "stream": True}
        direct = raw(provider.url + path.removeprefix("/openai").removeprefix("/anthropic"), body).content
        provider.behaviour = Behaviour(tokens=8, piece=piece)
        through = raw(f"{server.url}{path}", body).content
        assert through.replace(b"resp_2", b"resp_1").replace(b"resp_4", b"resp_3") == direct.replace(b"resp_2", b"resp_1").replace(b"resp_4", b"resp_3")


def test_real_clients_are_answered_and_their_questions_cost_what_they_cost(gateway: Any, provider: Any) -> None:
    server = gateway()
    provider.behaviour = Behaviour(tokens=1000, input_tokens=1000)
    run = {"x-runguard-run": "job-1"}
    answer = chat(server).chat.completions.create(model=CHAT, messages=HELLO, extra_headers=run)
    assert answer.choices[0].message.content == WORD * 1000
    assert spent(server, "job-1") == pytest.approx(0.0125)
    pieces = chat(server).chat.completions.create(model=CHAT, messages=HELLO, stream=True, extra_headers=run)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == WORD * 1000
    response = chat(server).responses.create(model=CHAT, input="hi", extra_headers=run)
    assert response.output_text == WORD * 1000
    with chat(server).responses.stream(model=CHAT, input="hi", extra_headers=run) as stream:
        for _ in stream:
            pass
    assert spent(server, "job-1") == pytest.approx(4 * 0.0125)
    message = claude(server).messages.create(model=MESSAGES, max_tokens=4000, messages=HELLO, extra_headers=run)
    assert message.content[0].text == WORD * 1000
    with claude(server).messages.stream(model=MESSAGES, max_tokens=4000, messages=HELLO, extra_headers=run) as stream:
        assert stream.get_final_message().usage.output_tokens == 1000
    assert spent(server, "job-1") == pytest.approx(4 * 0.0125 + 2 * 0.018)
    assert reserved(server, "job-1") == 0


def test_free_routes_pass_and_what_cannot_be_metered_does_not(gateway: Any, provider: Any) -> None:
    server = gateway()
    assert [model.id for model in chat(server).models.list()] == ["gpt-4o"]
    assert claude(server).messages.count_tokens(model=MESSAGES, messages=HELLO).input_tokens > 0
    chat(server).embeddings.create(model="text-embedding-3-small", input="a")
    before = len(provider.asked)
    with pytest.raises(openai.NotFoundError, match="does not know what POST /openai/v1/images/generations costs"):
        chat(server).images.generate(model="gpt-image-1", prompt="a cat")
    assert len(provider.asked) == before


def test_a_run_ends_when_its_money_is_spent_and_asks_once(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.05")
    provider.behaviour = Behaviour(tokens=1000, input_tokens=1000)
    client = chat(server)
    made = 0
    with pytest.raises(openai.APIStatusError) as refused:
        for _ in range(20):
            client.chat.completions.create(model=CHAT, messages=HELLO, max_tokens=1000)
            made += 1
    assert refused.value.status_code == 402
    assert refused.value.body["code"] == "budget_exceeded"
    assert "$0.05" in refused.value.message
    assert len(provider.asked) == made, "a refusal is asked once, and reaches no provider"
    total = sum(0.0025 + 0.01 * min(1000, body.get("max_completion_tokens", body.get("max_tokens", 1000))) / 1000 for body in provider.bodies)
    assert 0.03 <= total <= 0.05, "nearly all that could be bought was, and no more"


def test_an_answer_is_shortened_to_what_is_left(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.005")
    provider.behaviour = Behaviour(tokens=100_000, input_tokens=10)
    answer = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO, "max_tokens": 16000})
    bound = provider.bodies[0]["max_tokens"]
    assert 256 <= bound < 500, "half a cent pays for fewer than 500 tokens"
    assert answer.headers["x-runguard-max-output"] == str(bound)
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    without = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO}, **{"x-runguard-run": "other"})
    assert without.status_code == 200
    assert 256 <= provider.bodies[1]["max_tokens"] < 500, "a question without a bound gets one"
    again = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO, "max_tokens": 16000})
    assert again.status_code == 402, "what is left pays for too little"
    assert " The price is that of an answer of up to 16000 tokens." in again.json()["error"]["message"]
    both = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO, "max_tokens": 9000, "max_completion_tokens": 300}, **{"x-runguard-run": "both"})
    assert both.status_code == 200
    assert provider.bodies[-1]["max_tokens"] == provider.bodies[-1]["max_completion_tokens"] < 500, "nobody knows which one counts"


def test_a_cap_is_never_passed_by_many_at_once(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-day", "0.05")
    provider.behaviour = Behaviour(tokens=1000, input_tokens=20)
    client = chat(server, max_retries=0)

    def ask(number: int) -> float:
        try:
            stream = client.chat.completions.create(
                model=CHAT, messages=[{"role": "user", "content": f"Question {number}"}], max_tokens=1000, stream=True,
                stream_options={"include_usage": True},
            )
            usage = [piece.usage for piece in stream if piece.usage][-1]
            return usage.prompt_tokens * 2.5e-6 + usage.completion_tokens * 1e-5
        except openai.APIStatusError as refused:
            assert refused.status_code in (402, 429), "spent, or set aside by others"
            return 0.0

    with ThreadPoolExecutor(32) as pool:
        paid = sum(pool.map(ask, range(64)))
    assert 0.02 <= paid <= 0.05


@pytest.mark.parametrize("body", [
    {"tools": [{"type": "web_search"}]},
    {"background": True},
    {"models": ["gpt-4o", "o1-pro"]},
    {"fallbacks": [{"model": "o1-pro"}]},
    {"tools": [{"type": "function", "google_search": {}}]},
    {"service_tier": "ultra"},
], ids=["provider's tool", "background", "other models", "fallbacks", "a hidden tool", "an unknown tier"])
def test_what_has_no_known_price_is_not_asked_while_dollars_are_limited(gateway: Any, provider: Any, body: dict[str, Any]) -> None:
    server = gateway("--max-usd-per-run", "1")
    answer = raw(f"{server.url}/openai/v1/responses", {"model": CHAT, "input": "hi", **body}, **{"x-runguard-run": "r"})
    assert (answer.status_code, answer.json()["error"]["code"], provider.asked) == (402, "not_metered", [])
    assert reserved(server, "r") == 0
    refused = httpx.get(f"{server.url}/v1/decisions", params={"outcome": "blocked"}).json()["decisions"]
    shown = [(row["session_id"], row["guard"], row["reason"], row["input"]["call"]["upstream"]) for row in refused]
    assert shown == [("r", "budget", "not_metered", "openai")], "one row says why"


@pytest.mark.parametrize(("said", "streams", "usd"), [("gpt-4", False, 0.0006), ("gpt-4", True, 0.0006), ("gpt-4o-mini", False, 0.000075)])
def test_an_answer_costs_what_the_dearer_of_both_models_does(gateway: Any, provider: Any, said: str, streams: bool, usd: float) -> None:
    server = gateway("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=5, input_tokens=10, says_model=said)
    answer = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO, "max_tokens": 50, "stream": streams}, **{"x-runguard-run": "r"})
    assert answer.status_code == 200 and said in answer.text
    until = time.monotonic() + 10
    while reserved(server, "r") and time.monotonic() < until:
        time.sleep(0.05)
    assert spent(server, "r") == pytest.approx(usd)


def test_a_limit_is_not_rounded_away_and_a_wrong_one_is_told(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1e-12", "--max-usd-per-day", "4e-10")
    answer = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO})
    assert (answer.status_code, answer.json()["error"]["code"], provider.asked) == (402, "budget_exceeded", [])
    for wrong, problem in (("NaN", "decimal number"), ("inf", "infinite"), ("-1", "more than 0")):
        said = run_cli("gateway", "--max-usd-per-run", wrong)
        assert said.returncode == 2 and problem in said.stderr and "--max-usd-per-run" in said.stderr, said


def test_what_several_answers_cost_is_said_so(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.10")
    for more in ({"n": 16}, {"best_of": 16}):
        answer = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO, "max_tokens": 16384, **more})
        assert answer.status_code == 200 and int(answer.headers["x-runguard-max-output"]) < 16384 / 16, "asked for shorter"
    server.stop()
    server = gateway("--max-usd-per-run", "0.001")
    answer = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO, "n": 16}, **{"x-runguard-run": "other"})
    assert answer.status_code == 402 and "16 answers of up to 16384 tokens each" in answer.json()["error"]["message"]
    answer = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO, "stream": True, "stream_options": 5})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "the member `stream_options` must be an object.")


@pytest.mark.parametrize("words", ["deadbeef" * 100_000, "data: " + "x," * 150_000], ids=["hex", "a log"])
def test_words_that_look_like_data_are_words(gateway: Any, provider: Any, words: str) -> None:
    server = gateway("--max-usd-per-run", "0.05")
    answer = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": [{"role": "user", "content": words}]})
    assert (answer.status_code, provider.asked) == (402, [])


def test_a_long_prompt_of_numbers_does_not_pass_the_cap(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.05")
    rows = "".join(f"{number},{number * 7919 % 10007},0x{number * 104729 % 65536:04x}\n" for number in range(1500))
    # As OpenAI's tokenizer counts such a table: 1.4 bytes a token.
    provider.behaviour = Behaviour(tokens=100_000, input_tokens=int(len(rows) / 1.4))
    for _ in range(5):
        raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": [{"role": "user", "content": rows}], "max_tokens": 16000}, **{"x-runguard-run": "t"})
    assert spent(server, "t") <= 0.05


def test_an_unknown_model_is_refused_where_dollars_are_limited(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1")
    with pytest.raises(openai.APIStatusError) as refused:
        chat(server).chat.completions.create(model="nobody-knows-it", messages=HELLO)
    assert (refused.value.status_code, refused.value.body["code"], len(provider.asked)) == (402, "unknown_model", 0)
    for setting in ("`guards.budget.unknown_models`", '`gateway.upstreams.openai.models."nobody-knows-it" = "gpt-4o"`'):
        assert setting in refused.value.message, "what to do about it"


def test_a_provider_that_writes_on_is_cut_in_its_own_way(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=5000, ignores_bound=True)
    stream = chat(server).chat.completions.create(model=CHAT, messages=HELLO, max_tokens=50, stream=True)
    pieces = list(stream)
    assert pieces[-1].choices[0].finish_reason == "length"
    assert len(pieces) < 300, "a token has hardly ever so many bytes"
    asked = chat(server).chat.completions.create(model=CHAT, messages=HELLO, max_tokens=50, stream=True, stream_options={"include_usage": True})
    *_, last, counted = asked
    assert (last.choices[0].finish_reason, counted.choices) == ("length", []) and 50 < counted.usage.completion_tokens < 600
    with claude(server).messages.stream(model=MESSAGES, max_tokens=50, messages=HELLO) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "max_tokens"
    assert message.content[0].text.count(WORD) < 300
    events = list(chat(server).responses.create(model=CHAT, input="hi", max_output_tokens=50, stream=True))
    assert [event.sequence_number for event in events] == sorted(event.sequence_number for event in events)
    done = ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"]
    assert [event.type for event in events[-4:]] == done
    response = events[-1].response
    came = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert (response.status, response.incomplete_details.reason, response.output_text) == ("incomplete", "max_output_tokens", came)
    assert 50 < response.usage.output_tokens < 600 and response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    with chat(server).responses.stream(model=CHAT, input="hi", max_output_tokens=50) as stream:
        assert [event.type for event in stream][-1] == "response.incomplete"


@pytest.mark.parametrize("counts", [True, False], ids=["counted", "not counted"])
def test_an_answer_that_is_cut_costs_what_it_wrote_and_a_longer_one_no_more_than_was_set_aside(gateway: Any, provider: Any, counts: bool) -> None:
    server = gateway("--max-usd-per-run", "1")
    for tokens in (5000, 400):
        # The first is cut; the second ends before it must be, and is longer than it may be all the same.
        provider.behaviour = Behaviour(tokens=tokens, ignores_bound=True, input_tokens=10, counts=counts)
        run = f"cut-{tokens}"
        pieces = list(chat(server).chat.completions.create(model=CHAT, messages=HELLO, max_tokens=200, stream=True, extra_headers={"x-runguard-run": run}))
        deadline = time.monotonic() + 10
        while reserved(server, run) > 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        if tokens == 5000:
            assert len(pieces) < 1000
        # The prompt at the most it can have: what a provider that is cut has read, nobody has counted.
        prompt = 300 * 4.25e-6
        if tokens == 5000:
            assert len(pieces) * 10e-6 * 0.9 < spent(server, run) <= 2 * len(pieces) * 10e-6 + prompt, "it writes on beyond its bound, and is paid for that"
        elif not counts:
            assert 0 < spent(server, run) <= 200 * 10e-6 + prompt


def test_a_cut_answer_pays_for_all_that_the_provider_may_have_read(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=5000, ignores_bound=True, counts=False)
    body = {"model": CHAT, "input": "Go on.", "previous_response_id": "resp_of_long_ago", "max_output_tokens": 50, "stream": True}
    raw(f"{server.url}/openai/v1/responses", body, **{"x-runguard-run": "cut"})
    deadline = time.monotonic() + 10
    while reserved(server, "cut") > 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert spent(server, "cut") > 200_000 * 2e-6, "a conversation that nobody here knows"


def test_an_answer_slower_than_its_reservation_is_paid_once(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1", config='[guards.budget]\nreservation = "1s"\n')
    run = {"x-runguard-run": "slow"}
    provider.behaviour = Behaviour(tokens=40, input_tokens=1000, pause=0.1)
    pieces = chat(server).chat.completions.create(model=CHAT, messages=HELLO, max_tokens=1000, stream=True, extra_headers=run)
    for number, _ in enumerate(pieces):
        if number == 15:
            # Somebody asks meanwhile: what is late is booked at the most it can cost.
            chat(server).chat.completions.create(model=CHAT, messages=HELLO, max_tokens=10, extra_headers=run)
            assert spent(server, "slow") > 0.01
            shown = httpx.get(f"{server.url}/v1/spend", params={"by": "run"}).json()
            assert shown["total"]["overdue_usd"] > 0.01 and shown["total"]["usd"] == pytest.approx(spent(server, "slow"))
            assert shown["groups"][0]["entries"][0]["overdue_usd"] == shown["total"]["overdue_usd"]
    paid = 2 * 1000 * 2.5e-6 + 50 * 10e-6
    deadline = time.monotonic() + 10
    while spent(server, "slow") > 0.009 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (spent(server, "slow"), reserved(server, "slow")) == (pytest.approx(paid), 0), "what it cost stands in the place of that"
    total = httpx.get(f"{server.url}/v1/spend").json()["total"]
    assert (total["usd"], total["overdue_usd"]) == (pytest.approx(paid), 0)


def test_what_a_dead_gateway_had_under_way_is_seen_as_overdue(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1", "--max-usd-per-day", "5", config='[guards.budget]\nreservation = "1s"\n')
    provider.behaviour = Behaviour(tokens=100, pause=0.2)
    stream = chat(server).chat.completions.create(model=CHAT, messages=HELLO, max_tokens=1000, stream=True, extra_headers={"x-runguard-run": "died"})
    next(iter(stream))
    server.kill()
    server.start()
    time.sleep(1.1)
    run = httpx.get(f"{server.url}/v1/runs", params={"prefix": "died"}).json()["runs"][0]
    assert run["budget"]["overdue_usd"] == run["budget"]["spent_usd"] > 0.01 and run["budget"]["reserved_usd"] == 0
    day = httpx.get(f"{server.url}/v1/spend").json()["budgets"][0]
    assert day["overdue_usd"] == run["budget"]["overdue_usd"]
    shown = run_cli("runs", "--url", server.url)
    assert "overdue" in shown.stdout, shown.stdout
    overdue = run["budget"]["overdue_usd"]

    def spending() -> dict[str, Any]:
        told = httpx.get(f"{server.url}/v1/spend", params={"by": "run,day,tenant,model"}).json()
        return {"total": told["total"], **{group["by"]: group["entries"] for group in told["groups"]}}

    before = spending()
    assert before["total"]["usd"] == before["total"]["overdue_usd"] == pytest.approx(overdue), "nobody has asked since, and it is paid all the same"
    assert [(entry["name"], entry["usd"]) for entry in before["run"]] == [("died", pytest.approx(overdue))]
    assert [entry["usd"] for entry in before["day"]] == [entry["usd"] for entry in before["tenant"]] == [pytest.approx(overdue)]
    assert before["model"] == [], "of which model is known once it is settled"
    assert "that nobody settled in time" in run_cli("spend", "--url", server.url).stdout
    provider.behaviour = Behaviour(tokens=5, input_tokens=10)
    chat(server).chat.completions.create(model=CHAT, messages=HELLO, max_tokens=10, extra_headers={"x-runguard-run": "died"})
    after = spending()
    assert (after["total"]["overdue_usd"], after["total"]["usd"]) == (pytest.approx(overdue), pytest.approx(overdue + 10 * 2.5e-6 + 5 * 10e-6)), "once"
    assert "that nobody settled in time" in run_cli("spend", "--url", server.url).stdout


def test_nobody_waits_for_what_a_dead_gateway_had_under_way(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.015", config='[guards.budget]\nreservation = "1s"\n')
    run = {"x-runguard-run": "died"}
    provider.behaviour = Behaviour(tokens=100, pause=0.2)
    stream = chat(server).chat.completions.create(model=CHAT, messages=HELLO, max_tokens=1000, stream=True, service_tier="default", extra_headers=run)
    next(iter(stream))
    server.kill()
    server.start()
    time.sleep(1.1)
    provider.behaviour = Behaviour(tokens=1000, input_tokens=10)
    asked = {"model": CHAT, "messages": HELLO, "max_tokens": 1000, "service_tier": "default"}
    answer = raw(f"{server.url}/openai/v1/chat/completions", asked, **run)
    assert answer.status_code == 200, answer.text
    assert 0 < answer.json()["usage"]["completion_tokens"] < 500, "what is left pays for a shorter answer"
    refused = [raw(f"{server.url}/openai/v1/chat/completions", asked, **run).status_code for _ in range(2)]
    assert refused[-1] == 402, refused


def test_who_a_caller_is_does_not_travel_with_the_operators_key(gateway: Any, provider: Any) -> None:
    server = gateway(environment={"OPENAI_API_KEY": "sk-operators"})
    nobodys = {"cookie": "session=1", "x-http-method-override": "POST"}
    about = {"x-forwarded-for": "10.0.0.1", "forwarded": "for=10.0.0.1", "openai-organization": "org-callers", "openai-project": "proj-callers"}
    body = {"model": CHAT, "messages": HELLO}
    made = run_cli("key", "create", "--data", server.data, "--role", "guard")
    key = next(word for word in made.stdout.split() if word.startswith("rg_"))
    deadline = time.monotonic() + 10
    while httpx.get(f"{server.url}/openai/v1/models").status_code != 401 and time.monotonic() < deadline:
        time.sleep(0.05)
    raw(f"{server.url}/openai/v1/chat/completions", body, **{**about, **nobodys, "authorization": f"Bearer {key}"})
    assert provider.asked[-1].headers["authorization"] == "Bearer sk-operators"
    assert not {*about, *nobodys} & set(provider.asked[-1].headers)
    raw(f"{server.url}/openai/v1/chat/completions", body, **{**about, **nobodys, "authorization": "Bearer sk-own", "x-runguard-key": key})
    assert not set(nobodys) & set(provider.asked[-1].headers)
    assert {name: provider.asked[-1].headers.get(name) for name in about} == about, "with a key of its own it is the caller's to say"


def test_what_cannot_be_taken_is_said_in_the_providers_shape(gateway: Any, provider: Any) -> None:
    server = gateway()
    body = {"model": CHAT, "messages": HELLO}
    packed = raw(f"{server.url}/openai/v1/chat/completions", body, **{"content-encoding": "gzip"})
    assert (packed.status_code, packed.json()["error"]["type"]) == (415, "invalid_request_error")
    packed = raw(f"{server.url}/anthropic/v1/messages", body, **{"content-encoding": "zstd"})
    assert (packed.status_code, packed.json()["type"]) == (415, "error")
    named = httpx.post(f"{server.url}/openai/v1/chat/completions", json=body, headers=[(b"x-runguard-run", "Läufer".encode()), (b"authorization", b"Bearer x")])
    assert named.status_code == 400 and "x-runguard-run" in named.json()["error"]["message"]
    many = raw(f"{server.url}/openai/v1/completions", {"model": "gpt-3.5-turbo-instruct", "prompt": ["a"] * 200})
    assert many.status_code == 400 and "`prompt`" in many.json()["error"]["message"]
    assert provider.asked == []
    long = {"model": CHAT, "messages": [{"role": "user", "content": "a" * 1_500_000}]}
    assert raw(f"{server.url}/openai/v1/chat/completions", long, expect="100-continue").status_code == 200, "asking first is no reason"


def test_a_caller_who_leaves_pays_for_what_came(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=2000, input_tokens=1000, pause=0.005)
    stream = chat(server).chat.completions.create(model=CHAT, messages=HELLO, max_tokens=2000, stream=True, extra_headers={"x-runguard-run": "gone"})
    for number, _ in enumerate(stream):
        if number == 20:
            break
    stream.close()
    deadline = time.monotonic() + 10
    while reserved(server, "gone") > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert reserved(server, "gone") == 0
    assert 0 < spent(server, "gone") < 0.01
    while provider.left == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert provider.left == 1, "the provider is left too"


def test_leaving_often_passes_no_limit(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=2000, pause=0.005)
    # Hardly more than a byte is a token here; prose has four.
    dense = [{"role": "user", "content": "Q7Z" * 4000}]
    with chat(server).chat.completions.create(model=CHAT, messages=dense, max_tokens=2000, stream=True, extra_headers={"x-runguard-run": "gone"}) as stream:
        next(iter(stream))
    deadline = time.monotonic() + 30
    while reserved(server, "gone") > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert spent(server, "gone") > 12_000 * 2.5e-6


def test_what_streams_when_the_gateway_is_stopped_is_settled(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=100_000, pause=0.02)
    with chat(server, max_retries=0).chat.completions.create(model=CHAT, messages=HELLO, max_tokens=16_000, stream=True, extra_headers={"x-runguard-run": "cut"}) as stream:
        next(iter(stream))
        server.stop()
    server.start()
    assert (reserved(server, "cut"), 0 < spent(server, "cut") < 0.05) == (0, True), "what came, and not the longest answer"


@pytest.mark.parametrize("place", ["schema", "call"])
def test_words_that_are_called_an_image_are_words(gateway: Any, provider: Any, place: str) -> None:
    server = gateway("--max-usd-per-run", "0.05")
    url = {"url": "data:image/" + "lorem ipsum " * 20_000}
    body: dict[str, Any] = {"model": MESSAGES, "max_tokens": 300, "messages": list(HELLO)}
    if place == "schema":
        body["tools"] = [{"name": "f", "input_schema": {"type": "object", "examples": [url]}}]
    else:
        body["messages"].append({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": url}]})
        body["messages"].append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]})
    refused = raw(f"{server.url}/anthropic/v1/messages", body)
    assert (refused.status_code, refused.headers["x-runguard-reason"]) == (402, "budget_exceeded")
    assert provider.asked == []


def test_an_item_by_its_id_alone_is_as_long_as_it_can_be(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.05")
    for item in ({"id": "msg_1"}, {"id": "msg_1", "type": None}, {"id": "msg_1", "type": "item_reference"}, {"id": "rs_1", "type": "reasoning", "summary": []}):
        assert raw(f"{server.url}/openai/v1/responses", {"model": CHAT, "input": [item], "max_output_tokens": 300}).status_code == 402, item
    assert provider.asked == []


def test_items_that_came_through_here_are_as_long_as_their_answer(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.05")
    thought = {"type": "reasoning", "id": "rs_known", "summary": []}
    message = {"type": "message", "id": "msg_known", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}
    provider.behaviour = Behaviour(instead={"id": "resp_1", "model": CHAT, "status": "completed", "output": [thought, message], "usage": {"input_tokens": 9, "output_tokens": 90}})

    def ask(*items: dict[str, Any]) -> int:
        body = {"model": CHAT, "input": [{"role": "user", "content": "Say hello."}, *items], "max_output_tokens": 300}
        return raw(f"{server.url}/openai/v1/responses", body).status_code

    assert [ask(), ask(thought), ask(thought, {**thought, "id": "rs_other"})] == [200, 200, 402]
    # As the AI SDK sends an earlier answer.
    reference = {"type": "item_reference", "id": "msg_known"}
    assert [ask(thought, reference), ask(reference, {**reference, "id": "msg_other"})] == [200, 402]


def test_a_provider_is_taken_to_serve_first_until_it_says_otherwise_and_once_it_did(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.05")

    def bound(run: str, **more: str) -> str | None:
        body = {"model": "gpt-5.4", "messages": HELLO, "max_completion_tokens": 2500, **more}
        return raw(f"{server.url}/openai/v1/chat/completions", body, **{"x-runguard-run": run}).headers.get("x-runguard-max-output")

    provider.behaviour = Behaviour(instead={"model": "gpt-5.4", "choices": [], "service_tier": "priority", "usage": {"prompt_tokens": 9, "completion_tokens": 9}})
    assert int(bound("first") or 0) < 2000, "twice the price pays for half the answer"
    provider.behaviour.instead["service_tier"] = "default"
    assert int(bound("second") or 0) < 2000, "once it served first it may again"
    assert bound("third", service_tier="default") is None, "who says how gets that"
    other = raw(f"{server.url}/openai/v1/chat/completions", {"model": "gpt-5.4", "messages": HELLO, "max_completion_tokens": 500}, authorization="Bearer other")
    assert "x-runguard-max-output" not in other.headers
    body = {"model": "gpt-5.4", "messages": HELLO, "max_completion_tokens": 2500}
    usual = raw(f"{server.url}/openai/v1/chat/completions", body, authorization="Bearer other", **{"x-runguard-run": "fourth"})
    assert "x-runguard-max-output" not in usual.headers, "another project, which said how it serves"


def test_no_usage_is_estimated_and_said(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=1000, counts=False)
    answer = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO, "max_tokens": 1000}, **{"x-runguard-run": "mute"})
    assert answer.headers["x-runguard-estimated"] == "true"
    assert 0.005 < spent(server, "mute") < 0.05


@pytest.mark.parametrize("status", [400, 401, 429, 500, 529])
def test_what_a_provider_refuses_costs_nothing_and_is_passed_on(gateway: Any, provider: Any, status: int) -> None:
    server = gateway("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(status=status)
    answer = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO}, **{"x-runguard-run": "r"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, "scripted")
    assert (spent(server, "r"), reserved(server, "r")) == (0, 0)


def test_a_stream_that_breaks_off_breaks_off_and_is_paid(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=100, input_tokens=1000, breaks_after=30)
    with pytest.raises((openai.APIError, httpx.HTTPError)):
        for _ in chat(server, max_retries=0).chat.completions.create(model=CHAT, messages=HELLO, max_tokens=100, stream=True, extra_headers={"x-runguard-run": "b"}):
            pass
    deadline = time.monotonic() + 10
    while reserved(server, "b") > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert spent(server, "b") > 0


def test_a_stop_can_be_a_last_answer(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.00001", config='[gateway]\non_stop = "answer"\n')
    answer = chat(server).chat.completions.create(model=CHAT, messages=HELLO)
    assert "budget" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    pieces = list(chat(server).chat.completions.create(model=CHAT, messages=HELLO, stream=True))
    assert pieces[-1].choices[0].finish_reason == "stop"
    assert "budget" in claude(server).messages.create(model=MESSAGES, max_tokens=100, messages=HELLO).content[0].text
    with claude(server).messages.stream(model=MESSAGES, max_tokens=100, messages=HELLO) as stream:
        assert "budget" in stream.get_final_text()
    assert "budget" in chat(server).responses.create(model=CHAT, input="hi").output_text
    with chat(server).responses.stream(model=CHAT, input="hi") as stream:
        assert "budget" in stream.get_final_response().output_text
    assert provider.asked == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":"gpt-4o","model":"gpt-4o-mini","messages":[]}', b"\xff\xfe", b'{"messages":[]}', b'{"model":"gpt-4o","max_tokens":"9"}'])
def test_what_cannot_be_read_is_refused_in_the_providers_shape(gateway: Any, provider: Any, body: bytes) -> None:
    server = gateway()
    for path, kind in (("/openai/v1/chat/completions", "invalid_request_error"), ("/anthropic/v1/messages", "invalid_request_error")):
        answer = httpx.post(f"{server.url}{path}", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == kind
    assert provider.asked == []


def test_with_keys_of_ours_the_operator_pays_and_no_key_leaks(gateway: Any, provider: Any) -> None:
    server = gateway(environment={"OPENAI_API_KEY": "sk-operators-secret"})
    from runguard_process import run_cli

    made = run_cli("key", "create", "--data", server.data, "--role", "guard", "--name", "agents")
    key = next(word for word in made.stdout.split() if word.startswith("rg_"))
    admin = next(word for word in run_cli("key", "create", "--data", server.data, "--role", "admin").stdout.split() if word.startswith("rg_"))
    deadline = time.monotonic() + 10
    while httpx.get(f"{server.url}/openai/v1/models").status_code != 401 and time.monotonic() < deadline:
        time.sleep(0.05)
    client = openai.OpenAI(base_url=f"{server.url}/openai/v1", api_key=key)
    client.chat.completions.create(model=CHAT, messages=HELLO)
    assert provider.asked[-1].headers["authorization"] == "Bearer sk-operators-secret"
    own = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO}, **{"x-runguard-key": key})
    assert own.status_code == 200
    assert provider.asked[-1].headers["authorization"] == "Bearer x", "a key of one's own beside ours passes"
    assert "x-runguard-key" not in provider.asked[-1].headers
    for wrong, status in (("sk-anything", 401), (admin, 403)):
        with pytest.raises(openai.APIStatusError) as refused:
            openai.OpenAI(base_url=f"{server.url}/openai/v1", api_key=wrong).chat.completions.create(model=CHAT, messages=HELLO)
        assert refused.value.status_code == status
    with pytest.raises(anthropic.APIStatusError) as refused:
        anthropic.Anthropic(base_url=f"{server.url}/anthropic", api_key=key, max_retries=0).messages.create(model=MESSAGES, max_tokens=5, messages=HELLO)
    assert refused.value.status_code == 503, "no key for that provider"
    assert server.files_containing("sk-operators-secret", "Say hello.") == []
    assert "sk-operators-secret" not in server.log()


def test_a_gateway_that_is_killed_keeps_its_books(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-day", "0.05")
    provider.behaviour = Behaviour(tokens=1000, input_tokens=20, pause=0.002)
    came = 0

    async def ask(client: openai.AsyncOpenAI, number: int) -> None:
        nonlocal came
        try:
            stream = await client.chat.completions.create(
                model=CHAT, messages=[{"role": "user", "content": f"Question {number}"}], max_tokens=1000, stream=True)
            async for _ in stream:
                came += 1
        except openai.APIError:
            pass

    async def all_at_once(first: int, *, until_killed: bool) -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/openai/v1", api_key="k", max_retries=0) as client:
            asking = [asyncio.create_task(ask(client, first + number)) for number in range(32)]
            while until_killed and came < 50:
                await asyncio.sleep(0.01)
            if until_killed:
                server.kill()
            await asyncio.wait_for(asyncio.gather(*asking), 60)

    asyncio.run(all_at_once(0, until_killed=True))
    under_way = len(provider.asked)
    assert under_way > 0 and came < 1000 * under_way, "it died in the middle"
    server.start()
    asyncio.run(all_at_once(100, until_killed=False))
    most = sum(0.00005 + 0.01 * min(1000, body.get("max_tokens", 1000)) / 1000 for body in provider.bodies)
    assert most <= 0.05, "what was under way when it died is not free"


def test_a_model_that_loops_is_ended_in_chat(gateway: Any, provider: Any) -> None:
    server = gateway()
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    client, messages = chat(server), list(HELLO)
    with pytest.raises(openai.APIStatusError) as refused:
        for _ in range(30):
            message = client.chat.completions.create(model=CHAT, messages=messages).choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "nothing found"} for call in message.tool_calls]
    assert (refused.value.status_code, refused.value.body["code"]) == (402, "run_stalled")
    assert len(provider.asked) == 4, "the fourth equal step is the last that was paid"
    with pytest.raises(openai.APIStatusError):
        client.chat.completions.create(model=CHAT, messages=HELLO)
    assert len(provider.asked) == 4, "a task that begins anew is refused at once"
    client.chat.completions.create(model=CHAT, messages=[*messages, {"role": "user", "content": "Go on, look elsewhere."}])
    assert len(provider.asked) == 5, "a person wants it to go on"
    provider.asked.pop()
    client.chat.completions.create(model=CHAT, messages=[{"role": "user", "content": "Another task"}])


def test_a_stop_outlives_the_gateway(gateway: Any, provider: Any) -> None:
    server = gateway()
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    client, messages = chat(server), list(HELLO)
    with pytest.raises(openai.APIStatusError):
        for _ in range(30):
            # A framework that keeps only the latest rounds.
            message = client.chat.completions.create(model=CHAT, messages=[HELLO[0], *messages[1:][-4:]]).choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "nothing found"} for call in message.tool_calls]
    assert len(provider.asked) == 4
    server.kill()
    server.start()
    with pytest.raises(openai.APIStatusError):
        client.chat.completions.create(model=CHAT, messages=HELLO)
    assert len(provider.asked) == 4


def test_people_may_say_the_same_again(gateway: Any, provider: Any) -> None:
    server = gateway()
    client, messages = chat(server), list(HELLO)
    for _ in range(10):
        answer = client.chat.completions.create(model=CHAT, messages=messages).choices[0].message
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "yes"}]
    assert len(provider.asked) == 10


def test_the_same_job_again_is_no_loop(gateway: Any, provider: Any) -> None:
    server = gateway()
    client = chat(server)
    for _ in range(5):
        messages = list(HELLO)
        for step in range(3):
            provider.behaviour = Behaviour(call=("read", {"page": step}))
            message = client.chat.completions.create(model=CHAT, messages=messages).choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            messages += [{"role": "tool", "tool_call_id": call.id, "content": f"page {step}"} for call in message.tool_calls]
    assert len(provider.asked) == 15


def test_a_model_that_loops_is_ended_in_messages(gateway: Any, provider: Any) -> None:
    server = gateway()
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    client, messages = claude(server), list(HELLO)
    with pytest.raises(anthropic.APIStatusError) as refused:
        for _ in range(30):
            message = client.messages.create(model=MESSAGES, max_tokens=100, messages=messages)
            messages.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
            results = [{"type": "tool_result", "tool_use_id": block.id, "content": "nothing found"} for block in message.content]
            messages.append({"role": "user", "content": results})
    assert refused.value.status_code == 402
    assert len(provider.asked) == 4


def test_an_agent_that_gets_on_is_left_alone(gateway: Any, provider: Any) -> None:
    server = gateway()
    client, messages = chat(server), list(HELLO)
    for number in range(40):
        provider.behaviour = Behaviour(call=("read", {"page": number % 7}))
        message = client.chat.completions.create(model=CHAT, messages=messages).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": f"page {number}"} for call in message.tool_calls]
    assert len(provider.asked) == 40


def test_observing_says_what_it_would_have_stopped(gateway: Any, provider: Any) -> None:
    server = gateway(config='[guards.agent_run]\nmode = "observe"\n')
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    client, messages = chat(server), list(HELLO)
    for _ in range(6):
        message = client.chat.completions.create(model=CHAT, messages=messages).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "nothing found"} for call in message.tool_calls]
    assert len(provider.asked) == 6
    decisions = httpx.get(f"{server.url}/v1/decisions", params={"guard": "agent_run", "outcome": "would_block"}).json()
    assert len(decisions["decisions"]) >= 1
