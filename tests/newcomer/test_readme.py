"""Follows README.md, and the first steps of docs/guards.md behind it, where there is no Rust, and fails when something else comes than the pages say.

RUNGUARD_BIN is the program, RUNGUARD_WHEEL the Python package, RUNGUARD_NPM the TypeScript package (its folder or its archive). A block
of the pages that nobody follows here is a failure too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
import urllib.error
import urllib.request
import venv
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
# Where the page sends those who ask for a flow.
GUARDS = (ROOT / "docs/guards.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```\w*\n(.*?)```", PAGE + GUARDS, re.DOTALL)
ADDRESS = "127.0.0.1:8100"


class Home:
    """A machine of somebody who has just come: nothing but the programs of the system and `runguard`."""

    def __init__(self, folder: Path):
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        (programs / "runguard").symlink_to(Path(os.environ["RUNGUARD_BIN"]).resolve())
        node = Path(shutil.which("node") or "/usr/bin/node").parent
        self.env = {"PATH": f"{programs}:{node}:/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"}
        for known in ("PIP_FIND_LINKS", "PIP_CERT", "SSL_CERT_FILE"):
            if known in os.environ:
                self.env[known] = os.environ[known]
        assert shutil.which("cargo", path=self.env["PATH"]) is None, "where Rust is, nothing is shown by this"

    def run(self, line: str, **env: str) -> subprocess.CompletedProcess:
        """As it is typed."""
        return subprocess.run(["bash", "-ec", line], cwd=self.folder, env=self.env | env, capture_output=True, text=True, timeout=300)

    @contextlib.contextmanager
    def running(self, line: str, **env: str):
        """A command that stays, until it can be asked."""
        with open(self.folder / "said.log", "w") as said:
            process = subprocess.Popen(["bash", "-ec", f"exec {line}"], cwd=self.folder, env=self.env | env, stdout=said, stderr=said)
        try:
            end = time.monotonic() + 60
            while get("/readyz")[0] != 200:
                said = (self.folder / "said.log").read_text()
                assert process.poll() is None and time.monotonic() < end, f"{line} does not answer:\n{said}"
                time.sleep(0.1)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


@pytest.fixture()
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def get(path: str, host: str = ADDRESS) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{host}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except OSError:
        return 0, ""


def install_wheel(home: Home) -> None:
    venv.create(home.folder / "venv", with_pip=True)
    installed = home.run(f"venv/bin/pip install --quiet --no-index {os.environ['RUNGUARD_WHEEL']}")
    assert installed.returncode == 0, installed.stderr


def install_npm_package(home: Home) -> None:
    package = Path(os.environ["RUNGUARD_NPM"]).resolve()
    place = home.folder / "node_modules/@runguard/sdk"
    if package.is_dir():
        place.parent.mkdir(parents=True)
        place.symlink_to(package)
    else:
        installed = home.run(f"npm install --silent --no-fund --no-audit --offline {package}")
        assert installed.returncode == 0, installed.stderr


def block(begin: str) -> str:
    """The one that begins so."""
    [found] = [text for text in BLOCKS if text.lstrip().startswith(begin)]
    return found


# Every block of the pages, by how it begins: whoever adds one says here who follows it.
FOLLOWED = {
    "cargo run --no-default-features -- demo": "test_the_demo_and_the_words_about_the_build",
    "runguard gateway": "test_one_variable",
    "from runguard import guard": "test_three_lines_of_python",
    "import { withGuard }": "test_three_lines_of_typescript",
    "runguard run": "test_no_line_at_all",
    "runguard serve": "test_a_service_for_flows",
    "curl -s": "test_a_service_for_flows",
    '{"allow":false': "test_a_service_for_flows",
}


def test_every_block_is_followed():
    for text in BLOCKS:
        followers = [test for begin, test in FOLLOWED.items() if text.lstrip().startswith(begin)]
        assert len(followers) == 1 and followers[0] in globals(), f"nobody follows this:\n{text}"


# Commands within the text, and what is typed behind those that want more than the page has room for.
INLINE = sorted(set(re.findall(r"`(runguard [^`]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))))
MORE = {
    "runguard preflight": " --help",
    "runguard tune": " ~/.claude/projects",
}
# A run that a guard has stopped ends so, also in a demonstration.
CODES = {"runguard agent --demo loop": 1}
# What stays is followed by a test of its own.
STAY = {"runguard serve"}


def test_every_command_in_the_text_runs(home: Home):
    """As it is typed, beside a service that has decided something and a folder of recorded runs."""
    assert {"runguard insights", "runguard spend"} <= set(INLINE), "the page has commands in its text"
    assert set(MORE) | set(CODES) | STAY <= set(INLINE), "the page does not say these any more"
    runs = home.folder / ".claude/projects"
    runs.mkdir(parents=True)
    shutil.copy(ROOT / "crates/runguard-replay/tests/formats/claude-code.jsonl", runs)
    with home.running("runguard serve"):
        for _ in range(3):
            home.run(block("curl -s").strip())
        done = {command: home.run(command + MORE.get(command, "")) for command in INLINE if command not in STAY}
    for command, result in done.items():
        said = result.stdout + result.stderr
        assert result.returncode == CODES.get(command, 0) and said.strip(), (command, result.returncode, said)
    assert (home.folder / "week.html").stat().st_size > 1000


def test_the_picture_of_a_stop_is_what_is_printed(home: Home):
    """Its first line is what is typed; what follows is said, wherever its lines end."""
    [picture] = re.findall(r"!\[[^]]*\]\((docs/[\w.-]+\.svg)\)", PAGE)
    typed, *drawn = ["".join(text.itertext()) for text in ElementTree.parse(ROOT / picture).iter("{http://www.w3.org/2000/svg}text")]
    done = home.run(typed.removeprefix("$ "))
    said = " ".join((done.stdout + done.stderr).split())
    assert len(drawn) > 10 and [line for line in drawn if " ".join(line.split()) not in said] == [], said
    steps = re.search(r"With it: (\d+) steps and (\$[0-9.]+);", said)
    without = re.search(r"Without the guard: (\d+) steps \(max_steps\) and (\$[0-9.]+)\.", said)
    told = f"{steps[1]} steps and {steps[2]} instead of {without[1]} and {without[2]}]({picture})"
    assert told in PAGE, f"below the picture should stand: {told}"


def test_every_link_leads_somewhere():
    """Of every page, to the heading it names."""
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target, heading in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", without_code(page.read_text(encoding="utf-8"))):
            if target.startswith(("http", "mailto:")):
                continue
            leads_to = page.parent / target if target else page
            assert leads_to.exists(), f"{page.name} leads to {target}"
            if heading and leads_to.suffix == ".md":
                assert heading in headings(leads_to), f"{page.name} leads to {target}#{heading}"


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]+`", "", text, flags=re.DOTALL)


def headings(page: Path) -> set[str]:
    """Their anchors, as GitHub makes them."""
    lines = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL).splitlines()
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()) for line in lines if re.match(r"#+ ", line)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_demo_and_the_words_about_the_build(home: Home):
    lines = [line.split("#")[0].strip() for line in block("cargo run --no-default-features -- demo").splitlines()]
    assert lines == ["cargo run --no-default-features -- demo", "cargo install --locked --path crates/runguard-cli"]
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())
    assert f"Rust {workspace['workspace']['package']['rust-version']} or later" in PAGE
    assert tomllib.loads((ROOT / "crates/runguard-cli/Cargo.toml").read_text())["bin"][0]["name"] == "runguard"
    assert workspace["workspace"]["default-members"] == ["crates/runguard-cli"], "`cargo run` alone means the program"
    shown = home.run("runguard demo --seconds 5")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "What next:" in shown.stdout and "$" in shown.stdout


class Provider(BaseHTTPRequestHandler):
    """Answers each chat with a dollar's worth of tokens."""

    asked = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        type(self).asked += 1
        usage = {"prompt_tokens": 10, "completion_tokens": 100_000, "total_tokens": 100_010}
        choice = {"index": 0, "message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}
        body = json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-4o", "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_one_variable(home: Home):
    command, elsewhere, *exports = block("runguard gateway").splitlines()
    assert elsewhere.startswith("# and in another terminal"), "the gateway stays in the foreground"
    assert all(line.startswith(f"export ") and f"http://{ADDRESS}/" in line for line in exports)
    provider = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    Thread(target=provider.serve_forever, daemon=True).start()
    question = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 100_000})
    ask = "\n".join([*exports, f"curl -s -w '\\n%{{http_code}}' $OPENAI_BASE_URL/chat/completions -H 'authorization: Bearer sk-mine' -d '{question}'"])
    with home.running(command, RUNGUARD_GATEWAY_OPENAI=f"http://127.0.0.1:{provider.server_port}/v1"):
        answers = [home.run(ask).stdout.rsplit("\n", 1) for _ in range(4)]
    # A dollar each, and two to spend.
    assert [status for _, status in answers] == ["200", "200", "402", "402"], answers
    assert Provider.asked == 2
    assert "2" in json.loads(answers[2][0])["error"]["message"]
    provider.shutdown()


def test_three_lines_of_python(home: Home):
    install_wheel(home)
    before = "def search(words): return 'nothing'\ndef agent(tools):\n    while True: tools[0]('the same words')\n"
    (home.folder / "agent.py").write_text(before + block("from runguard import guard"))
    ended = home.run("venv/bin/python agent.py")
    assert ended.returncode == 1 and "LoopDetectedError" in ended.stderr, ended.stderr
    calls = before.replace("return 'nothing'", "print('searched'); return 'nothing'")
    (home.folder / "agent.py").write_text(calls + block("from runguard import guard"))
    assert home.run("venv/bin/python agent.py").stdout.count("searched") == 2, "the third equal call in a row does not run"


def test_three_lines_of_typescript(home: Home):
    install_npm_package(home)
    before = "const search = async () => { console.log('searched'); return 'nothing' }\nconst agent = async ({ tools }) => { for (;;) await tools[0]('the same words') }\n"
    (home.folder / "agent.mjs").write_text(before + block("import { withGuard }"))
    ended = home.run("node agent.mjs")
    assert ended.returncode == 1 and "LoopDetectedError" in ended.stderr, ended.stderr
    assert ended.stdout.count("searched") == 2, "the third equal call in a row does not run"


def test_no_line_at_all(home: Home):
    """What is counted is tried with the real clients elsewhere; here that both lines run, with the cap in place."""
    lines = block("runguard run").strip().splitlines()
    install_wheel(home)
    install_npm_package(home)
    (home.folder / "agent.py").write_text("from runguard import current_run\nprint('python', current_run() is not None)\n")
    (home.folder / "agent.mjs").write_text("console.log('node', process.env.NODE_OPTIONS !== undefined)\n")
    path = f"{home.folder}/venv/bin:{home.env['PATH']}"
    for line, said in zip(lines, ("python True", "node true"), strict=True):
        done = home.run(line, PATH=path)
        assert done.returncode == 0 and said in done.stdout, (line, done.stdout, done.stderr)


def test_a_service_for_flows(home: Home):
    serve = block("runguard serve").split("#")[0].strip()
    printed = json.loads(re.sub(r"\n\s*", "", block('{"allow":false')))
    with home.running(serve):
        answers = [home.run(block("curl -s").strip()) for _ in range(3)]
        first, second, third = (json.loads(answer.stdout) for answer in answers)
        listed = home.run("runguard decisions")
        assert get("/")[0] == 200 and get("/docs")[0] == 200
    assert first["allow"] and second["allow"]
    assert list(third) == list(printed), "the page shows other fields"
    changing = {"decision_id", "retry_after_seconds"}
    assert {name: value for name, value in third.items() if name not in changing} == {
        name: value for name, value in printed.items() if name not in changing
    }
    assert 3590 <= third["retry_after_seconds"] <= printed["retry_after_seconds"]
    assert listed.returncode == 0 and "retry_cap_reached" in listed.stdout, listed.stdout + listed.stderr
    assert (home.folder / "runguard-data").is_dir()
