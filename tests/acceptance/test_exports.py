"""What other tools read: Prometheus metrics, the Grafana dashboard made for them, OpenTelemetry spans and metrics."""

import gzip
import http.server
import json
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from catalogue import CIRCUIT_CHECK, CIRCUIT_RECORD, HANDOFF
from runguard_process import REPOSITORY, free_port

DASHBOARD = REPOSITORY / "exports" / "grafana" / "runguard.json"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def some_traffic(flow):
    for _ in range(4):
        flow.post(HANDOFF, {"session_id": "s", "source_bot": "a", "target_bot": "b"})
    for number in range(10):
        flow.post(CIRCUIT_RECORD, {"session_id": f"s{number}", "endpoint_key": "api", "outcome": "failure"})
    flow.post(CIRCUIT_CHECK, {"session_id": "s", "endpoint_key": "api"})
    flow.post("/guard/kb-requery", {"session_id": "s", "topic_hash": "t", "last_confidence": 0.9})


def samples(text):
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


# -- Prometheus -----------------------------------------------------------------------------------


def test_metrics_tell_decisions_savings_circuits_and_the_store(flow):
    some_traffic(flow)
    found = samples(flow.get("/metrics").text)
    assert found['runguard_decisions_total{guard="handoff",outcome="blocked",reason="cycle_detected"}'] == 2
    assert found['runguard_operations_saved_total{guard="handoff"}'] == 2
    assert found['runguard_operations_saved_total{guard="kb_requery"}'] == 2, "a query and the model that reads it"
    assert found['runguard_circuits{phase="open"}'] == 1 and found['runguard_circuits{phase="closed"}'] == 0
    assert found["runguard_log_newest_row"] == 16
    assert found["runguard_circuit_trips_total"] == 1
    assert any(name.startswith("runguard_build_info{version=") for name in found)
    assert found['runguard_circuits{phase="half_open"}'] == 0
    later = samples(flow.wait(3600).get("/metrics").text)
    assert later['runguard_circuits{phase="half_open"}'] == 1, "recovered as far as time alone goes"


def test_both_text_formats_are_spoken(flow):
    some_traffic(flow)
    asks_for = lambda accept: flow.get("/metrics", headers={"accept": accept} if accept else None)
    for accept in ("application/openmetrics-text", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
                   "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"):
        open_metrics = asks_for(accept)
        assert open_metrics.content_type == "application/openmetrics-text" and open_metrics.text.endswith("# EOF\n"), accept
    for accept in (None, "*/*", "text/plain", "text/html,*/*;q=0.8", "text/plain,application/openmetrics-text;q=0.1",
                   "application/openmetrics-text;q=0"):
        plain = asks_for(accept)
        assert plain.content_type == "text/plain" and "version=0.0.4" in plain.headers["content-type"], accept
        assert "# EOF" not in plain.text and "# TYPE runguard_decisions_total counter" in plain.text
        # What `promtool check metrics` would not know.
        assert set(re.findall(r"^# TYPE \S+ (\S+)$", plain.text, re.M)) <= {"counter", "gauge", "histogram"}


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool (Debian: prometheus) is not installed")
def test_promtool_finds_nothing_to_complain_about(flow):
    some_traffic(flow)
    plain = flow.get("/metrics", headers={"accept": "text/plain"})
    checked = subprocess.run(["promtool", "check", "metrics"], input=plain.body, capture_output=True, timeout=30)
    assert checked.returncode == 0 and not checked.stderr, checked


# -- Grafana --------------------------------------------------------------------------------------


def expressions():
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], re.match(r"label_values\((\w+), \w+\)", variable["definition"])[1]


def test_the_dashboard_is_one_for_grafana():
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard").Dashboard.from_json(json.loads(DASHBOARD.read_text()))
    assert dashboard.title == "RunGuard" and len(dashboard.panels) >= 12
    assert all(panel.datasource.uid == "${datasource}" for panel in dashboard.panels), "whoever imports it names the source"
    places = {(panel.grid_pos.x, panel.grid_pos.y) for panel in dashboard.panels}
    assert len(places) == len(dashboard.panels)
    assert len({panel.id_val for panel in dashboard.panels}) == len(dashboard.panels)


def test_every_expression_parses_and_names_what_the_service_tells(flow):
    promql_parser = pytest.importorskip("promql_parser")
    some_traffic(flow)
    told = {re.split(r"[{ ]", line)[0] for line in flow.get("/metrics").text.splitlines() if not line.startswith("#")}
    labels = set(re.findall(r'[{,](\w+)="', flow.get("/metrics").text)) | {"instance", "le"}
    for title, expression in expressions():
        filled = expression.replace("$__rate_interval", "5m").replace("$__range", "1h").replace("$instance", ".*").replace("$guard", ".*")
        promql_parser.parse(filled)
        named = set(re.findall(r"\brunguard_\w+", filled))
        assert named and named <= told, (title, named - told)
        used = set(re.findall(r"[{,](\w+)(?:=|!)", filled)) | set(filter(None, ",".join(re.findall(r"by \(([^)]*)\)", filled)).replace(" ", "").split(",")))
        assert used <= labels, (title, used - labels)


# -- OpenTelemetry --------------------------------------------------------------------------------


class Receiver:
    """Takes what a collector sends on: OTLP as protobuf, decoded with the official messages."""

    def __init__(self):
        traces = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
        metrics = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
        kinds = {"/v1/traces": traces.ExportTraceServiceRequest, "/v1/metrics": metrics.ExportMetricsServiceRequest}
        self.messages = {path: [] for path in kinds}
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.messages[self.path].append(kinds[self.path].FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self):
        return [span for message in self.messages["/v1/traces"] for resource in message.resource_spans
                for scope in resource.scope_spans for span in scope.spans]

    def metrics(self):
        return {metric.name: metric for message in self.messages["/v1/metrics"] for resource in message.resource_metrics
                for scope in resource.scope_metrics for metric in scope.metrics}


class Collector:
    """A real collector between the service and the receiver."""

    def __init__(self, receiver, log: Path):
        rotel = pytest.importorskip("rotel")
        self.port = free_port()
        self.command = [
            str(Path(rotel.__file__).parent / "rotel-agent"), "start", "--disable-batching",
            "--otlp-http-endpoint", f"127.0.0.1:{self.port}", "--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}",
            "--exporter", "otlp", "--otlp-exporter-endpoint", f"http://127.0.0.1:{receiver.port}", "--otlp-exporter-protocol", "http",
        ]
        self.log = log
        self.process = None

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()


@pytest.fixture
def collector(receiver, tmp_path):
    collector = Collector(receiver, tmp_path / "collector.log")
    yield collector
    collector.stop()


def until(what, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def attributes(span):
    return {entry.key: entry.value.string_value for entry in span.attributes}


def test_decisions_arrive_at_a_collector_as_spans_of_the_callers_trace(serve, receiver, collector):
    collector.start()
    flow = serve(f'[telemetry]\notlp_endpoint = "http://127.0.0.1:{collector.port}"\nservice_name = "bot"\n').client()
    body = {"session_id": "conversation-1", "source_bot": "a", "target_bot": "billing"}
    traced = flow.post(HANDOFF, body, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}).json
    flow.post(HANDOFF, body, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    refused = flow.post(HANDOFF, body, headers={"traceparent": "nonsense"}).json
    flow.post("/guard/agent-action", {"session_id": "conversation-1", "action_name": "look_up"})
    flow.post("/guard/budget/record", {"session_id": "conversation-1", "model": "gpt-4o", "input_tokens": 1000, "output_tokens": 10})
    flow.post("/guard/ai-task-retry", {"session_id": "conversation-1", "task_name": "t", "user_message": "a private word"})
    spans = until(lambda: len(receiver.spans()) >= 5 and receiver.spans())
    by_id = {attributes(span)["runguard.decision_id"]: span for span in spans}
    assert len(by_id) == len(spans) == 5, "the one whose caller did not sample it is not sent, and none twice"
    first = by_id[traced["decision_id"]]
    assert (first.trace_id.hex(), first.parent_span_id.hex(), first.name) == (TRACE, PARENT, "guard handoff")
    assert first.start_time_unix_nano == flow.now_ms * 1_000_000
    told = attributes(first)
    assert told["gen_ai.operation.name"] == "invoke_agent" and told["gen_ai.agent.name"] == "billing"
    assert told["gen_ai.conversation.id"] == "conversation-1" and told["runguard.outcome"] == "allowed"
    other = by_id[refused["decision_id"]]
    assert other.trace_id.hex() != TRACE and not other.parent_span_id
    assert attributes(other)["runguard.reason"] == "cycle_detected"
    by_guard = {attributes(span)["runguard.guard"]: attributes(span) for span in spans}
    assert by_guard["agent_action"]["gen_ai.tool.name"] == "look_up"
    assert by_guard["budget"]["gen_ai.request.model"] == "gpt-4o"
    assert not any("private" in str(span) for span in spans), "what users said is not sent"
    resource = receiver.messages["/v1/traces"][0].resource_spans[0].resource
    assert {entry.key: entry.value.string_value for entry in resource.attributes}["service.name"] == "bot"
    found = until(lambda: (found := samples(flow.get("/metrics").text)).get('runguard_telemetry_spans_total{result="exported"}') == 5 and found)
    assert found['runguard_telemetry_spans_total{result="dropped"}'] == 0


class Upstream(http.server.BaseHTTPRequestHandler):
    """A provider that answers every question alike."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-4o-2024-08-06",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "a private word"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100, "prompt_tokens_details": {"cached_tokens": 400}},
        }).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_model_calls_through_the_gateway_are_spans_and_metrics_of_generative_ai(serve, receiver, collector):
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    collector.start()
    server = serve(f'[telemetry]\notlp_endpoint = "http://127.0.0.1:{collector.port}"\n'
                   f'[gateway]\nenabled = true\nupstreams.openai.url = "http://127.0.0.1:{upstream.server_port}/v1"\n')
    question = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"x-runguard-run": "job-1", "traceparent": f"00-{TRACE}-{PARENT}-01", "authorization": "Bearer sk-own"}
    assert server.client().post("/openai/v1/chat/completions", question, headers=headers).status == 200
    span = until(lambda: next((span for span in receiver.spans() if span.name == "chat gpt-4o"), None))
    assert (span.kind, span.trace_id.hex(), span.parent_span_id.hex()) == (3, TRACE, PARENT)
    assert span.start_time_unix_nano <= span.end_time_unix_nano
    told = {**attributes(span), **{entry.key: entry.value.int_value for entry in span.attributes if entry.value.int_value}}
    assert (told["gen_ai.provider.name"], told["gen_ai.operation.name"], told["gen_ai.conversation.id"]) == ("openai", "chat", "job-1")
    assert (told["gen_ai.request.model"], told["gen_ai.response.model"]) == ("gpt-4o", "gpt-4o-2024-08-06")
    usage = [told[f"gen_ai.usage.{name}"] for name in ("input_tokens", "output_tokens", "cache_read.input_tokens")]
    assert usage == [1000, 100, 400]
    assert server.stop() == 0
    tokens = until(lambda: receiver.metrics().get("gen_ai.client.token.usage"))
    by_type = {next(entry.value.string_value for entry in point.attributes if entry.key == "gen_ai.token.type"): (point.count, point.sum)
               for point in tokens.histogram.data_points}
    assert by_type == {"input": (1, 1000), "output": (1, 100)}
    assert receiver.metrics()["gen_ai.client.operation.duration"].histogram.data_points[0].count == 1
    # 600 at 2.50, 400 from the cache at 1.25 and 100 at 10 dollars a million.
    assert receiver.metrics()["runguard.cost"].sum.data_points[0].as_double == pytest.approx(0.003)
    assert not any("private" in str(span) for span in receiver.spans())
    upstream.shutdown()


def test_the_last_spans_and_the_totals_are_sent_when_the_service_stops(serve, receiver, collector):
    collector.start()
    server = serve(f'[telemetry]\notlp_endpoint = "http://127.0.0.1:{collector.port}"\n')
    until(lambda: server.client().get("/readyz").status == 200)
    for _ in range(3):
        server.client().post(HANDOFF, {"session_id": "s", "source_bot": "a", "target_bot": "b"})
    time.sleep(0.5)
    assert server.stop() == 0
    decisions = until(lambda: receiver.metrics().get("runguard.decisions"))
    assert len(receiver.spans()) == 3
    counted = {tuple(sorted(entry.value.string_value for entry in point.attributes)): point.as_double for point in decisions.sum.data_points}
    assert counted == {("allowed", "handoff"): 2, ("blocked", "cycle_detected", "handoff"): 1}
    assert decisions.sum.is_monotonic and decisions.sum.aggregation_temporality == 2


def test_a_collector_that_is_away_slows_nobody_and_gets_what_waits_when_it_is_back(serve, receiver, collector):
    server = serve(f'[telemetry]\notlp_endpoint = "http://127.0.0.1:{collector.port}"\n')
    flow = server.client(keep_alive=True)
    slowest = 0.0
    for number in range(200):
        began = time.monotonic()
        flow.post(HANDOFF, {"session_id": f"s{number}", "source_bot": "a", "target_bot": "b"})
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 1, "an answer waits for no collector"
    time.sleep(2)
    assert receiver.spans() == []
    collector.start()
    spans = until(lambda: len(receiver.spans()) >= 200 and receiver.spans(), seconds=30)
    assert len({attributes(span)["runguard.decision_id"] for span in spans}) == len(spans) == 200


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "ftp://x", "http://user:secret@host:4318", "http://"])
def test_an_address_that_is_none_is_refused_by_name(serve, endpoint):
    server = serve(f'[telemetry]\notlp_endpoint = "{endpoint}"\n', start=False)
    server.launch()
    assert server.process.wait(20) == 2
    assert "telemetry.otlp_endpoint" in server.log() and "runguard.toml:2" in server.log()


