"""What deploy/ ships is accepted by the tools that read it, agrees with itself, and with the binary."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import helm_python
import kubernetes_validate
import pytest
import yaml

from conftest import REPOSITORY
from runguard_process import Server, binary, free_port, run_cli

DEPLOY = REPOSITORY / "deploy"
GUIDE = (REPOSITORY / "docs" / "deploy.md").read_text()
TOOLS = Path(sys.executable).parent
CARGO = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["workspace"]["package"]
NODES = ("runguard-1", "runguard-2")
# From SIGTERM on: connections 10 s, spans 6 s, and the last rows.
STOP_SECONDS = 30


def run(*command: object, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, **options)


def wait_until(happens, seconds: float = 15, every: float = 0.1) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(every)


def nginx() -> str:
    # Not in the search path of ordinary users.
    found = shutil.which("nginx", path=os.environ["PATH"] + os.pathsep + "/usr/sbin")
    assert found, "nginx is not installed"
    return found


# -- everything ---------------------------------------------------------------------------------


def files() -> list[Path]:
    return sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.name != ".env")


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_no_secret_in_plain_text(path: Path):
    text = path.read_text()
    for password in re.findall(r"://[^\s:@/]*:([^@\s]+(?: [^@\n]*)?)@", text):
        assert password == "CHANGE-ME" or re.fullmatch(r"\$\{\w+:\?[^}]*\}", password), password
    assert not re.search(r"\brg_[a-z0-9]{8,}_[a-z0-9]{16,}", text), "an API key"
    assert "PRIVATE KEY" not in text
    for name, value in re.findall(r"^\s*(\w*(?:PASSWORD|SECRET|TOKEN)\w*)\s*[=:][ \t]*(\S.*)?$", text, re.M):
        assert not value or value.startswith("${"), name


def test_the_guide_names_files_that_exist_and_every_file_is_of_use():
    named = set(re.findall(r"deploy/[\w./-]*\w", GUIDE)) - {"deploy/.env"}
    assert named
    assert not [name for name in named if not (REPOSITORY / name).exists()]
    texts = GUIDE + "".join(path.read_text() for path in files())
    # Docker and Helm know these by their names.
    by_name = {"Dockerfile.dockerignore", "Chart.yaml", "values.schema.json", "NOTES.txt", "_names.tpl"}
    unmentioned = [path.name for path in files() if path.name not in texts and path.name not in by_name]
    assert not unmentioned
    assert re.search(r"^/deploy/\.env$", (REPOSITORY / ".gitignore").read_text(), re.M)


def test_versions_are_those_of_the_project(compose: dict):
    version = CARGO["version"]
    assert f"runguard:{version} ." in (DEPLOY / "Dockerfile").read_text()
    assert f"RUNGUARD_IMAGE=runguard:{version}\n" in (DEPLOY / "env.example").read_text()
    assert {compose["services"][name]["image"] for name in (*NODES, "key")} == {f"runguard:{version}"}
    [image] = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["images"]
    assert image["newTag"] == version
    chart = yaml.safe_load((DEPLOY / "helm" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


def environment_of_nodes(compose: dict, one) -> set[str]:
    """Every variable of ours that a node is given, by any of the ways."""
    names = {name for node in NODES for name in compose["services"][node]["environment"]}
    names |= set(compose["services"]["key"]["environment"])
    names |= {entry["name"] for entry in container(one)["env"]} | set(one("Secret", "runguard")["stringData"])
    texts = [DEPLOY / name for name in ("runguard.service", "runguard.service.d/cluster.conf", "runguard.env.example", "Dockerfile")]
    names |= {name for path in texts for name in re.findall(r"RUNGUARD_[A-Z_]+(?==)", path.read_text())}
    assert len(names) >= 5
    return names


def test_every_variable_is_documented_and_read_by_the_service(compose: dict, one):
    names = environment_of_nodes(compose, one)
    shown = set(re.findall(r"RUNGUARD_[A-Z_]+", run_cli("serve", "--help").stdout))
    assert names <= shown, f"`runguard serve` does not read {names - shown}"
    assert not [name for name in names if f"`{name}`" not in GUIDE]


def test_the_service_accepts_the_settings(one, tmp_path: Path):
    texts = [(DEPLOY / "settings" / "runguard.toml").read_text(), one("ConfigMap")["data"]["runguard.toml"]]
    for text in texts:
        assert tomllib.loads(text)
        file = tmp_path / "runguard.toml"
        file.write_text(text)
        checked = run_cli("settings", "check", file)
        assert checked.returncode == 0, checked.stderr
    file.write_text(texts[-1].replace("memory_mb", "memory_megabytes"))
    assert run_cli("settings", "check", file).returncode != 0, "the check lets everything pass"


def test_nodes_share_keys_through_a_link_and_see_changes(one, tmp_path: Path):
    shared = tmp_path / "keys"

    def make(tenant: str) -> dict:
        return json.loads(run_cli("key", "create", "--data", shared, "--tenant", tenant, "--role", "read", "--json").stdout)

    def status(node: Server, key: str | None) -> int:
        return node.client(key=key).get("/v1/decisions").status

    first, nodes = make("acme"), []
    [linker] = one("Deployment")["spec"]["template"]["spec"]["initContainers"]
    try:
        for name in NODES:
            (tmp_path / name).mkdir()
            node = Server(tmp_path / name, virtual_clock=False)
            node.data.mkdir()
            node.listen = f"0.0.0.0:{node.port}"
            paths = {"/etc/runguard/keys/keys.json": shared / "keys.json", "/var/lib/runguard/keys.json": node.data / "keys.json"}
            made = run(*[paths.get(word, word) for word in linker["command"]])
            assert made.returncode == 0, made.stderr
            nodes.append(node.start())
        for node in nodes:
            assert status(node, None) == 401
            assert status(node, first["key"]) == 200
        second = make("other")
        for node in nodes:
            wait_until(lambda: status(node, second["key"]) == 200)
        assert run_cli("key", "revoke", "--data", shared, first["id"]).returncode == 0
        for node in nodes:
            wait_until(lambda: status(node, first["key"]) == 401)
    finally:
        assert not any([node.stop() for node in nodes])


# -- the image ----------------------------------------------------------------------------------


def test_hadolint_finds_nothing_in_the_dockerfile():
    linted = run(TOOLS / "hadolint", "--failure-threshold", "info", DEPLOY / "Dockerfile")
    assert linted.returncode == 0, linted.stdout


def test_the_image_is_built_from_what_it_copies_and_runs_without_rights(routes: set[str], compose: dict):
    text = (DEPLOY / "Dockerfile").read_text()
    copied = {word for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.M) for word in line.split()[:-1]}
    allowed = set(re.findall(r"^!(.*)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.M))
    assert copied == allowed == {name for name in allowed if (REPOSITORY / name).exists()}
    # A module `tests` is compiled by `cargo test` alone, never into the image.
    for source in (file for file in (REPOSITORY / "crates").glob("*/src/**/*.rs") if file.name != "tests.rs"):
        for folder in re.findall(r'include_(?:str|bytes)!\((?:concat!\()?"(?:\.\./){4}(\w+)/', source.read_text()):
            assert folder in copied, f"{source} includes a file of {folder}"
    used = tuple(map(int, re.search(r"^FROM rust:([\d.]+)", text, re.M)[1].split(".")))
    assert used >= tuple(map(int, CARGO["rust-version"].split(".")))
    last = text[text.rindex("\nFROM ") :]
    user = re.search(r"^USER (\d+):(\d+)$", last, re.M)
    assert user and int(user[1]) > 0 and int(user[2]) > 0
    assert re.search(r"http://127.0.0.1:8100(/\w+)", last)[1] in routes
    assert all("user" not in compose["services"][name] for name in NODES), "the image's user owns the folders"


# -- compose ------------------------------------------------------------------------------------


def test_compose_keeps_to_its_schema(tmp_path: Path, compose: dict):
    checker = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")
    checked = run(*checker, DEPLOY / "compose.yaml")
    assert checked.returncode == 0, checked.stdout
    broken = tmp_path / "compose.json"
    broken.write_text(json.dumps({**compose, "services": {"a": {"images": "x"}}}))
    assert run(*checker, broken).returncode != 0, "the check lets everything pass"


def test_compose_variables_are_those_of_the_example_and_passwords_have_no_default():
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
    example = dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / "env.example").read_text(), re.M))
    assert used == set(example)
    assert {name for name, value in example.items() if not value} == {name for name in used if "PASSWORD" in name} != set()
    assert not re.search(r"PASSWORD(\}|:?-)", (DEPLOY / "compose.yaml").read_text()), "a password that may be empty"


def test_compose_holds_together(compose: dict, routes: set[str]):
    services = compose["services"]
    used = {mount.split(":")[0] for service in services.values() for mount in service["volumes"]}
    assert {name for name in used if not name.startswith(".")} == set(compose["volumes"])
    assert all((DEPLOY / name).exists() for name in used if name.startswith("."))
    assert {name for service in services.values() for name in service.get("networks", [])} == set(compose["networks"])
    for name, service in services.items():
        assert "no-new-privileges:true" in service["security_opt"], name
        assert "privileged" not in service
        if name != "key":
            assert service["restart"] == "unless-stopped" and service["healthcheck"]["test"], name
        for route in re.findall(r"http://127.0.0.1:\d+(/\w+)", json.dumps(service.get("healthcheck", ""))):
            assert route in routes
    # Nobody but the balancer can be reached from outside, and that only from this machine unless it is said otherwise.
    assert [name for name, service in services.items() if "ports" in service] == ["balancer"]
    assert services["balancer"]["ports"] == ["127.0.0.1:8100:8080"]
    assert services["state"]["networks"] == services["log"]["networks"] == ["back"]
    assert compose["networks"]["back"] == {"internal": True}


def test_compose_nodes_differ_in_nothing_but_their_own_folder(compose: dict):
    first, second = (dict(compose["services"][name]) for name in NODES)
    own, others = {first["volumes"][0], second["volumes"][0]}, (first.pop("volumes")[1:], second.pop("volumes")[1:])
    assert first == second and others[0] == others[1]
    assert {mount.split(":")[1] for mount in own} == {"/var/lib/runguard"} and len(own) == 2
    assert all(mount.endswith(":ro") for mount in others[0])
    assert first["cap_drop"] == ["ALL"] and first["read_only"]
    assert int(first["stop_grace_period"].removesuffix("s")) >= STOP_SECONDS
    assert all(first["depends_on"][name]["condition"] == "service_healthy" for name in ("state", "log"))
    mounted = [mount.split(":")[1] for mount in others[0]]
    settings = Path(first["environment"]["RUNGUARD_CONFIG"])
    assert str(settings.parent) in mounted and (DEPLOY / "settings" / settings.name).exists()
    assert "/etc/runguard/keys" in mounted and "ln -s /etc/runguard/keys/keys.json" in (DEPLOY / "Dockerfile").read_text()


def test_compose_addresses_lead_to_its_own_services(compose: dict):
    services, environment = compose["services"], compose["services"][NODES[0]]["environment"]
    state, log = urlsplit(environment["RUNGUARD_STATE"]), urlsplit(environment["RUNGUARD_LOG_DATABASE"])
    assert (state.scheme, state.hostname, state.port) == ("redis", "state", 6379)
    assert state.password == shlex.split(services["state"]["command"])[-1] == "STATE_PASSWORD"
    expected = services["log"]["environment"]
    assert (log.scheme, log.hostname, log.port) == ("postgres", "log", 5432)
    assert (log.username, log.password) == (expected["POSTGRES_USER"], expected["POSTGRES_PASSWORD"])
    assert log.path == "/" + expected["POSTGRES_DB"]
    assert int(re.match(r"postgres:(\d+)", services["log"]["image"])[1]) >= 15


def test_redis_takes_the_options_and_keeps_everything(compose: dict, tmp_path: Path):
    server, *options = shlex.split(compose["services"]["state"]["command"])
    assert server == "valkey-server"
    port = free_port()
    process = subprocess.Popen(["redis-server", *options, "--port", str(port), "--dir", str(tmp_path)], stdout=subprocess.DEVNULL)

    def ask(*words: str) -> list[str]:
        return run("redis-cli", "-p", port, "--no-auth-warning", "-a", "STATE_PASSWORD", *words).stdout.split()

    try:
        wait_until(lambda: ask("ping") == ["PONG"])
        for name, value in {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "everysec"}.items():
            assert ask("config", "get", name) == [name, value]
        assert int(ask("config", "get", "maxmemory")[1]) > 0
        assert "NOAUTH" in run("redis-cli", "-p", port, "get", "x").stdout
    finally:
        process.terminate()
        process.wait(30)


# -- the load balancer --------------------------------------------------------------------------


def balancer(tmp_path: Path, nodes: list[Server], port: int) -> Path:
    """The shipped configuration with addresses of this test; the older nginx of Debian 12 cannot look up names again."""
    text = (DEPLOY / "nginx.conf").read_text()
    for name, node in zip(NODES, nodes, strict=True):
        assert text.count(f"server {name}:8100 resolve ") == 1
        text = text.replace(f"server {name}:8100 resolve ", f"server 127.0.0.1:{node.port} ")
    assert text.count("listen 8080;") == 1
    text = text.replace("listen 8080;", f"listen 127.0.0.1:{port};").replace(" /tmp/", f" {tmp_path}/")
    file = tmp_path / "nginx.conf"
    file.write_text(text)
    return file


def test_nginx_balances_real_nodes_and_survives_the_loss_of_one(tmp_path: Path):
    nodes = []
    for name in NODES:
        (tmp_path / name).mkdir()
        node = Server(tmp_path / name, virtual_clock=False)
        if nodes:
            node.data.mkdir(mode=0o700)
            shutil.copy(nodes[0].data / "keys.json", node.data)
        else:
            made = run_cli("key", "create", "--data", node.data, "--role", "admin", "--json")
            key = json.loads(made.stdout)["key"]
        nodes.append(node.start())
    port = free_port()
    file = balancer(tmp_path, nodes, port)
    checked = run(nginx(), "-t", "-e", "stderr", "-c", file)
    assert checked.returncode == 0 and "[warn]" not in checked.stderr, checked.stderr
    # Workers of root's nginx would be another user, who may not enter this test's folder.
    directives = "daemon off; user root;" if os.geteuid() == 0 else "daemon off;"
    process = subprocess.Popen([nginx(), "-e", "stderr", "-c", str(file), "-g", directives], stderr=subprocess.DEVNULL)

    def ask(path: str, body: bytes | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        headers = {"authorization": f"Bearer {key}"}
        connection.request("POST" if body is not None else "GET", path, body, headers)
        return connection.getresponse()

    def question(session: str) -> bytes:
        return json.dumps({"session_id": session, "task_name": "classify"}).encode()

    def reachable() -> bool:
        try:
            return ask("/healthz").status == 200
        except OSError:
            return False

    try:
        wait_until(reachable)
        stream = ask("/v1/events")
        assert stream.status == 200
        for number in range(20):
            assert ask("/guard/ai-task-retry", question(f"s{number}")).status == 200
        assert all(node.client(key=key).get("/v1/decisions").json["decisions"] for node in nodes), "one node got everything"
        # Events come through at once, not when some buffer is full.
        assert b"\n" in stream.read1(64)
        # The node's own words, not nginx's page.
        refused = ask("/guard/ai-task-retry", b'{"session_id":"' + b"x" * 1_500_000 + b'"}')
        assert refused.status == 413 and refused.headers["content-type"] == "application/problem+json"
        nodes[0].kill()
        for number in range(40):
            assert ask("/guard/ai-task-retry", question(f"t{number}")).status == 200
        assert nodes[1].client().get("/readyz").status == 200
    finally:
        process.terminate()
        process.wait(30)
        for node in nodes:
            node.stop()


# -- systemd ------------------------------------------------------------------------------------


def unit(tmp_path: Path, *, cluster: bool) -> Path:
    """The unit with a binary that is there, since systemd looks; with its drop-in or without."""
    text = (DEPLOY / "runguard.service").read_text()
    assert "ExecStart=/usr/local/bin/runguard serve\n" in text
    file = tmp_path / "runguard.service"
    file.write_text(text.replace("/usr/local/bin/runguard", str(binary())))
    if cluster:
        shutil.copytree(DEPLOY / "runguard.service.d", tmp_path / "runguard.service.d")
    return file


@pytest.mark.parametrize("cluster", [False, True], ids=["single", "cluster"])
def test_systemd_accepts_the_unit(tmp_path: Path, cluster: bool):
    file = unit(tmp_path, cluster=cluster)
    verified = run("systemd-analyze", "verify", "--man=no", file)
    assert verified.returncode == 0 and "runguard" not in verified.stderr, verified.stderr
    target = tmp_path / "runguard.service.d" / "cluster.conf" if cluster else file
    target.write_text(target.read_text().replace("[Service]", "[Service]\nRestartSeconds=1"))
    assert "RestartSeconds" in run("systemd-analyze", "verify", "--man=no", file).stderr, "the check lets everything pass"


def test_systemd_shows_little_to_an_attacker(tmp_path: Path):
    file = unit(tmp_path, cluster=False)
    # Of 100: 15 and less is as tight as a service that uses the network can well be.
    judged = run("systemd-analyze", "security", "--offline=true", "--threshold=15", "--no-pager", file)
    assert judged.returncode == 0, judged.stdout[-400:]


def directives() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", (DEPLOY / "runguard.service").read_text(), re.M):
        found.setdefault(name, []).append(value)
    return found


def test_systemd_unit_stops_gently_and_comes_back():
    found = directives()
    assert found["DynamicUser"] == ["yes"] and found["StateDirectory"] == ["runguard"]
    assert f"RUNGUARD_DATA=%S/{found['StateDirectory'][0]}" in found["Environment"]
    assert found["Restart"] == ["always"] and found["StartLimitIntervalSec"] == ["0"]
    assert found["KillSignal"] == ["SIGTERM"] and int(found["TimeoutStopSec"][0]) >= STOP_SECONDS
    # A descriptor a connection, and the files.
    connections = re.search(r"`server.max_connections` \| `(\d+)`", (REPOSITORY / "docs" / "settings.md").read_text())
    assert int(found["LimitNOFILE"][0]) > 2 * int(connections[1])
    dropin = (DEPLOY / "runguard.service.d" / "cluster.conf").read_text()
    assert "EnvironmentFile=\nEnvironmentFile=/etc/runguard/runguard.env\n" in dropin, "the file must be there"
    assert "LoadCredential=keys.json:" in dropin and "%d/keys.json %S/runguard/keys.json" in dropin


# -- Kubernetes ---------------------------------------------------------------------------------


def pod(one) -> dict:
    return one("Deployment")["spec"]["template"]["spec"]


def container(one) -> dict:
    [found] = pod(one)["containers"]
    return found


@pytest.mark.parametrize("version", ["1.30.0", kubernetes_validate.latest_version()])
def test_kubernetes_objects_keep_to_their_schemas(objects: list[dict], version: str):
    for found in objects:
        kubernetes_validate.validate(found, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**objects[0], "specs": {}}, version, strict=True)


def test_kustomization_lists_every_file_but_the_template():
    folder = DEPLOY / "kubernetes"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())
    there = {path.name for path in folder.iterdir()} - {"kustomization.yaml", "secret.example.yaml"}
    assert sorted(listed["resources"]) == sorted(there)
    assert [image["name"] for image in listed["images"]] == ["runguard"]


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kubectl_puts_it_together(objects: list[dict]):
    built = run("kubectl", "kustomize", DEPLOY / "kubernetes")
    assert built.returncode == 0, built.stderr
    made = list(yaml.safe_load_all(built.stdout))
    assert {(o["kind"], o["metadata"]["name"]) for o in made} == {
        (o["kind"], o["metadata"]["name"]) for o in objects if o["kind"] != "Secret"
    }
    assert built.stdout.count(f"image: registry.example.com/runguard:{CARGO['version']}\n") == 2
    for found in made:
        kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)


def test_labels_and_selectors_match(objects: list[dict], one):
    labels = one("Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        one("Deployment")["spec"]["selector"]["matchLabels"],
        one("Service")["spec"]["selector"],
        one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(spread["labelSelector"]["matchLabels"] for spread in pod(one)["topologySpreadConstraints"]),
    ]
    assert len(selectors) == 6
    for selector in selectors:
        assert selector and selector.items() <= labels.items()
    namespace = one("Namespace")["metadata"]["name"]
    assert {o["metadata"].get("namespace", namespace) for o in objects} == {namespace}
    target = one("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", one("Deployment")["metadata"]["name"])


def sample(name: str) -> dict:
    return yaml.safe_load((DEPLOY / "kubernetes-samples" / name).read_text())


def test_the_ingress_leads_to_the_service(one):
    ingress, service = sample("ingress.yaml"), one("Service")
    kubernetes_validate.validate(ingress, kubernetes_validate.latest_version(), strict=True)
    [rule] = ingress["spec"]["rules"]
    [path] = rule["http"]["paths"]
    backend = path["backend"]["service"]
    assert backend["name"] == service["metadata"]["name"] and backend["port"]["name"] in [port["name"] for port in service["spec"]["ports"]]
    assert ingress["metadata"]["namespace"] == service["metadata"]["namespace"]
    assert rule["host"] in ingress["spec"]["tls"][0]["hosts"], "a key must not travel in plain text"


def test_prometheus_finds_every_node(one, routes: set[str]):
    """The operator's kinds are in no schema of Kubernetes: what it reads is compared with what is there."""
    monitor, service = sample("servicemonitor.yaml"), one("Service")
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "ServiceMonitor")
    assert set(monitor) == {"apiVersion", "kind", "metadata", "spec"} and set(monitor["spec"]) == {"selector", "endpoints"}
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["metadata"]["namespace"] == service["metadata"]["namespace"]
    [endpoint] = monitor["spec"]["endpoints"]
    assert set(endpoint) == {"port", "path", "interval", "authorization"}
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]] and endpoint["path"] in routes
    assert endpoint["authorization"]["credentials"] == {"name": "runguard-metrics", "key": "key"}


# -- Helm: the same objects, from values ------------------------------------------------------------


def rendered(name: str = "runguard", **values: object) -> dict[str, dict]:
    """By kind, what `helm template` makes."""
    chart = helm_python.Chart.load(DEPLOY / "helm")
    made = chart.render(values, name=name, namespace="runguard")
    texts = [text for file, text in made.items() if not file.endswith("NOTES.txt")]
    found = [thing for text in texts for thing in yaml.safe_load_all(text) if thing]
    kinds = {thing["kind"]: thing for thing in found}
    assert len(kinds) == len(found)
    return kinds


def without_the_release(thing: object) -> object:
    """The chart's labels name the release too, and who made them."""
    if isinstance(thing, list):
        return [without_the_release(part) for part in thing]
    if not isinstance(thing, dict):
        return thing
    of_release = {f"app.kubernetes.io/{name}" for name in ("instance", "version", "managed-by")}
    return {name: without_the_release(part) for name, part in thing.items() if name not in of_release}


def test_helms_linter_finds_nothing():
    told = helm_python.lint(DEPLOY / "helm", strict=True)
    assert told["total_charts_linted"] == 1 and not told["errors"]
    assert [message["error"] for message in told["messages"]] == ["icon is recommended"]


def test_the_chart_makes_what_kustomize_makes(objects: list[dict]):
    shipped = {thing["kind"]: thing for thing in objects if thing["kind"] not in ("Secret", "Namespace")}
    for found in pod(lambda kind: shipped[kind])["containers"] + pod(lambda kind: shipped[kind])["initContainers"]:
        found["image"] = f"registry.example.com/runguard:{CARGO['version']}"
    assert without_the_release(rendered()) == shipped
    extras = rendered(ingress={"enabled": True}, serviceMonitor={"enabled": True})
    assert set(extras) == {*shipped, "Ingress", "ServiceMonitor"}
    assert without_the_release(extras["Ingress"]) == sample("ingress.yaml")
    assert without_the_release(extras["ServiceMonitor"]) == sample("servicemonitor.yaml")


def test_a_release_under_another_name_holds_together():
    made = rendered(
        "guard-2",
        image={"repository": "registry.example.com/mine", "tag": "7", "pullSecrets": ["pull"]},
        nodes={"least": 2, "most": 4, "cpu": 50},
        network={"policy": False},
        ingress={"enabled": True, "host": "guard.test", "className": ""},
        podAnnotations={"a": "b"},
        tolerations=[{"key": "only", "operator": "Exists"}],
        nodeSelector={"disk": "fast"},
    )
    assert "NetworkPolicy" not in made and "ingressClassName" not in made["Ingress"]["spec"]
    for thing in made.values():
        kubernetes_validate.validate(thing, "1.30.0", strict=True)
        assert thing["metadata"]["name"] == "guard-2"
    template = made["Deployment"]["spec"]["template"]
    assert {found["image"] for found in template["spec"]["containers"] + template["spec"]["initContainers"]} == {"registry.example.com/mine:7"}
    for selector in (made["Deployment"]["spec"]["selector"]["matchLabels"], made["Service"]["spec"]["selector"]):
        assert selector["app.kubernetes.io/instance"] == "guard-2" and selector.items() <= template["metadata"]["labels"].items()
    assert made["Ingress"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"] == made["Service"]["metadata"]["name"]
    assert made["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == made["Deployment"]["metadata"]["name"]


@pytest.mark.parametrize("values", [{"nodes": {"least": 0}}, {"replicas": 3}, {"ingress": {"enabled": "yes"}}, {"network": {"ports": [0]}}])
def test_values_that_mean_nothing_are_refused(values: dict):
    with pytest.raises(helm_python.HelmError):
        rendered(**values)


def test_probes_and_ports_lead_to_routes_that_exist(one, routes: set[str]):
    found = container(one)
    [port] = found["ports"]
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = found[kind]["httpGet"]
        assert probe["path"] in routes and probe["port"] == port["name"], kind
    assert found["livenessProbe"]["httpGet"]["path"] == "/healthz", "a store that is away is no reason to kill nodes"
    assert found["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert one("Service")["spec"]["ports"][0]["targetPort"] == port["name"]
    assert one("NetworkPolicy")["spec"]["ingress"][0]["ports"][0]["port"] == port["name"]
    listen = re.search(r"RUNGUARD_LISTEN=0\.0\.0\.0:(\d+)", (DEPLOY / "Dockerfile").read_text())
    assert port["containerPort"] == int(listen[1])


def test_a_drain_may_move_pods_and_leaves_some(one):
    least = one("HorizontalPodAutoscaler")["spec"]["minReplicas"]
    assert "replicas" not in one("Deployment")["spec"], "each apply would undo what the autoscaler did"
    budget = one("PodDisruptionBudget")["spec"]
    movable = budget["maxUnavailable"] if "maxUnavailable" in budget else least - budget["minAvailable"]
    assert 0 < movable < least
    update = one("Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert update["maxUnavailable"] == 0 and update["maxSurge"] > 0


def test_a_pod_stops_gently(one):
    pause = int(container(one)["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert pause >= 5
    assert pod(one)["terminationGracePeriodSeconds"] >= pause + STOP_SECONDS


def test_pods_run_without_rights(one):
    assert one("Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    context, user = pod(one)["securityContext"], re.search(r"^USER (\d+)", (DEPLOY / "Dockerfile").read_text(), re.M)
    assert context["runAsNonRoot"] and context["runAsUser"] == context["fsGroup"] == int(user[1])
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod(one)["automountServiceAccountToken"] is False
    for found in (*pod(one)["containers"], *pod(one)["initContainers"]):
        own = found["securityContext"]
        assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] and own["capabilities"] == {"drop": ["ALL"]}
        assert set(found["resources"]["requests"]) >= {"cpu", "memory"} <= set(found["resources"]["limits"])


def test_mounts_hold_what_is_looked_for_in_them(one):
    mounts = {mount["mountPath"]: mount["name"] for mount in container(one)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod(one)["volumes"]}
    assert set(mounts.values()) == set(volumes)
    [settings] = [Path(entry["value"]) for entry in container(one)["env"] if entry["name"] == "RUNGUARD_CONFIG"]
    assert volumes[mounts[str(settings.parent)]]["configMap"]["name"] == one("ConfigMap")["metadata"]["name"]
    assert settings.name in one("ConfigMap")["data"]
    [linker] = pod(one)["initContainers"]
    target, link = map(Path, linker["command"][-2:])
    secret = volumes[mounts[str(target.parent)]]["secret"]
    assert target.name in one("Secret", secret["secretName"])["stringData"]
    # Read by the group, which is the pod's.
    assert secret["defaultMode"] == 0o440
    data = re.search(r"RUNGUARD_DATA=(\S+)", (DEPLOY / "Dockerfile").read_text())[1]
    assert link == Path(data) / "keys.json" and "emptyDir" in volumes[mounts[data]]
    assert not [mount for mount in container(one)["volumeMounts"] if "subPath" in mount], "these never change"
    [source] = container(one)["envFrom"]
    assert set(one("Secret", source["secretRef"]["name"])["stringData"]) == {"RUNGUARD_STATE", "RUNGUARD_LOG_DATABASE"}


def test_memory_is_enough_for_the_states(one):
    states = tomllib.loads(one("ConfigMap")["data"]["runguard.toml"])["store"]["memory_mb"]
    resources = container(one)["resources"]
    assert resources["requests"]["memory"] == "512Mi" and states * 2 <= 512
    assert resources["limits"]["memory"] == "1Gi"


def test_nodes_reach_what_their_addresses_name(one):
    open_ports = {(rule["port"], rule["protocol"]) for rule in one("NetworkPolicy")["spec"]["egress"][0]["ports"]}
    for address in one("Secret", "runguard")["stringData"].values():
        assert (urlsplit(address).port, "TCP") in open_ports
    assert {(53, "UDP"), (53, "TCP"), (443, "TCP")} <= open_ports
