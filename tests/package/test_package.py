"""What ./package makes, installed and used where there is no Rust.

RUNGUARD_DIST names a folder that ./package filled; without it the packages are made around the program that is tested, which is neither
small nor static, and what only a release can keep is not asked of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
RELEASED = os.environ.get("RUNGUARD_DIST")
# Programs of the system, without cargo and rustc, which live in the home of whoever installed them.
BARE = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
NODE = {**BARE, "PATH": f"{Path(shutil.which('node') or '/usr/bin/node').parent}:{BARE['PATH']}"}

only_released = pytest.mark.skipif(not RELEASED, reason="asked of a release: ./test package")


def run(*words: object, env: dict[str, str] = BARE, **options) -> subprocess.CompletedProcess:
    made = subprocess.run([str(word) for word in words], env=env, capture_output=True, text=True, **options)
    assert made.returncode == 0, f"{words}: {made.stdout}{made.stderr}"
    return made


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tested program without its symbols: what is packed is small enough to be packed quickly."""
    small = tmp_path_factory.mktemp("program") / "runguard"
    run("strip", "-o", small, os.environ["RUNGUARD_BIN"])
    return small


def make(out: Path, program: Path, *kinds: str, wheel: Path | None = None) -> None:
    words = [*kinds, *(["wheel", "--wheel", wheel] if wheel else [])]
    made = subprocess.run([str(ROOT / "package"), *map(str, words), "--binary", str(program), "--out", str(out)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    if RELEASED:
        return Path(RELEASED).resolve()
    out = tmp_path_factory.mktemp("dist")
    wheels = sorted((ROOT / ".cache/wheels").glob("*.whl"))
    make(out, request.getfixturevalue("program"), "tarball", "deb", "image", "sbom", "npx", wheel=wheels[-1] if wheels else None)
    return out


def one(dist: Path, pattern: str) -> Path:
    [found] = dist.glob(pattern)
    return found


def version_of(*command: object, env: dict[str, str] = BARE) -> str:
    return run(*command, "--version", env=env).stdout


@contextlib.contextmanager
def serving(*words: object, env: dict[str, str]):
    """A service, and its address once it has said it; told to end, it does."""
    with subprocess.Popen([str(word) for word in words], env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as service:
        try:
            port = next(found[1] for line in service.stderr if (found := re.search(r"http://[\d.]+:(\d+)", line)))
            yield f"http://127.0.0.1:{port}"
        finally:
            service.terminate()
            assert service.wait(30) == 0


def test_the_checksums_are_those_of_the_files(dist: Path):
    assert run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=dist).stdout.count(": OK") == len(list(dist.iterdir())) - 1


def test_the_tarball_has_a_program_that_runs_and_what_belongs_to_it(dist: Path, tmp_path: Path):
    with tarfile.open(one(dist, "runguard-*-linux-x86_64.tar.gz")) as archive:
        assert {member.uid for member in archive} == {0}
        archive.extractall(tmp_path, filter="data")
    [top] = tmp_path.iterdir()
    assert version_of(top / "runguard").startswith("runguard 0.")
    assert ".TH runguard 1" in (top / "man/man1/runguard.1").read_text() and (top / "man/man1/runguard-demo.1").exists()
    assert {path.name for path in (top / "completions").iterdir()} == {"runguard.bash", "_runguard", "runguard.fish"}
    run("bash", "-n", top / "completions/runguard.bash")
    assert all((top / name).stat().st_size for name in ("LICENSE", "THIRD-PARTY-NOTICES.md", "CHANGELOG.md", "sbom.cdx.json"))


def led_to(page: Path) -> set[Path]:
    """Every file that a page leads to, and the pages there lead to, as far as they are about running it."""
    pages, found = [page], set()
    for each in pages:
        links = {(each.parent / link).resolve() for link in re.findall(r"\]\(([^)#\s:]+)", each.read_text())}
        found |= links
        pages += [link for link in links if link.name in ("install.md", "cluster.md", "backup.md", "metrics.md", "settings.md") and link not in pages]
    return found


def test_what_the_unit_and_its_guide_name_is_in_the_tarball(dist: Path, tmp_path: Path):
    with tarfile.open(one(dist, "runguard-*-linux-x86_64.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    [top] = tmp_path.iterdir()
    unit, guide = (top / "deploy/runguard.service").read_text(), (top / "docs/deploy.md").read_text()
    named = re.findall(r"(?:docs|deploy)/[\w./-]*\w", unit)
    assert len(named) == 2 and all((top / name).is_file() for name in named), named
    # The commands of the guide, in this folder, put the files where the unit looks for them.
    sources = dict(re.findall(r"^sudo install (?:-D )?-m \d+ (\S+) (\S+)", guide, re.MULTILINE))
    assert sources["runguard"] == re.search(r"^ExecStart=(\S+)", unit, re.MULTILINE)[1]
    assert all((top / source).is_file() for source in sources if source.startswith("deploy/") or source == "runguard")
    without = {"Dockerfile"}
    assert [link for link in led_to(top / "docs/deploy.md") if not link.exists() and link.name not in without] == []


def test_the_debian_package_installs_and_is_removed(dist: Path, tmp_path: Path):
    package = one(dist, "runguard_*_amd64.deb")
    assert "Package: runguard\n" in run("dpkg-deb", "--field", package).stdout
    root, admin = tmp_path / "root", tmp_path / "admin"
    for folder in (root, admin / "info", admin / "updates"):
        folder.mkdir(parents=True)
    (admin / "status").touch()
    (admin / "available").touch()
    dpkg = ("dpkg", f"--instdir={root}", f"--admindir={admin}", "--force-not-root", f"--log={tmp_path}/log")
    run(*dpkg, "--install", package)
    assert version_of(root / "usr/bin/runguard").startswith("runguard 0.")
    unit = (root / "lib/systemd/system/runguard.service").read_text()
    assert "ExecStart=/usr/bin/runguard serve" in unit
    named = re.findall(r"/usr/share/doc/[\w./-]*\w", unit)
    assert len(named) == 2 and all((root / name.lstrip("/")).is_file() for name in named), named
    assert not [link for link in led_to(root / "usr/share/doc/runguard/docs/deploy.md") if not link.exists() and link.name not in ("Dockerfile", "runguard.service")]
    assert (root / "usr/share/man/man1/runguard.1.gz").exists() and (root / "usr/share/doc/runguard/copyright").exists()
    run(*dpkg, "--remove", "runguard")
    assert not (root / "usr/bin/runguard").exists()


def test_the_image_is_whole_and_its_program_serves_without_rights(dist: Path, tmp_path: Path):
    layout, root = tmp_path / "layout", tmp_path / "root"
    layout.mkdir()
    run("tar", "-xf", one(dist, "*.oci.tar"), "-C", layout)

    def blob(described: dict) -> bytes:
        algorithm, digest = described["digest"].split(":")
        content = (layout / "blobs" / algorithm / digest).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest and len(content) == described["size"]
        return content

    [described] = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(described))
    # What podman, and what containerd and docker call it, is what the guide runs.
    names = {described["annotations"][key] for key in ("org.opencontainers.image.ref.name", "io.containerd.image.name")}
    [older] = json.loads((layout / "manifest.json").read_text())
    assert names == set(older["RepoTags"]) == set(re.findall(r"localhost/runguard:[0-9.]+[0-9]", (ROOT / "docs/install.md").read_text()))
    stored = [f"blobs/{each['digest'].replace(':', '/')}" for each in (manifest["config"], *manifest["layers"])]
    assert [older["Config"], *older["Layers"]] == stored
    config = json.loads(blob(manifest["config"]))
    [layer] = manifest["layers"]
    archive = tmp_path / "layer.tar.gz"
    archive.write_bytes(blob(layer))
    with tarfile.open(archive) as opened:
        owners = {member.name: (member.uid, member.mode) for member in opened}
        opened.extractall(root, filter="tar", numeric_owner=True)
    assert owners["var/lib/runguard"] == (65532, 0o700) and owners["usr/bin/runguard"] == (0, 0o755)
    assert config["config"]["User"] == "65532:65532"
    if os.geteuid() != 0:
        pytest.skip("another user's program is started by root only")
    if not RELEASED:
        # The tested program asks for the system's libraries; a released one brings all it needs.
        for line in run("ldd", root / "usr/bin/runguard").stdout.splitlines():
            library = next((word for word in line.split() if word.startswith("/")), None)
            if library:
                target = root / library.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(os.path.realpath(library), target)
    tmp_path.chmod(0o755)
    environment = dict(entry.split("=", 1) for entry in config["config"]["Env"])
    inside = [shutil.which("chroot", path=BARE["PATH"]), "--userspec=65532:65532", str(root), "/usr/bin/runguard"]
    (root / "dev").mkdir(exist_ok=True)
    # As the guide says: the first key is made by the image itself, and then it listens where others reach it.
    run(*inside, "key", "create", "--tenant", "acme", "--role", "guard,read", env={**BARE, **environment})
    environment["RUNGUARD_LISTEN"] = "0.0.0.0:0"
    with serving(*inside, *config["config"]["Cmd"], env={**BARE, **environment}) as address:
        assert urllib.request.urlopen(f"{address}/healthz", timeout=10).status == 200


def test_the_bill_of_materials_names_every_crate_with_its_licence(dist: Path):
    bill = json.loads(one(dist, "runguard-*.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    names = {component["name"] for component in bill["components"]}
    assert {"tokio", "libsqlite3-sys", "rustls"} <= names and "runguard-core" not in names
    assert all(component["licenses"] and component["hashes"] for component in bill["components"])
    validator = pytest.importorskip("cyclonedx.validation.json")
    from cyclonedx.schema import SchemaVersion

    assert validator.JsonStrictValidator(SchemaVersion.V1_5).validate_str(json.dumps(bill)) is None


@pytest.fixture()
def wheel(dist: Path) -> Path:
    """The one that fits this system."""
    wheels = [path for path in dist.glob("runguard_breaker-*.whl") if "musllinux" not in path.name]
    if not wheels and not RELEASED:
        pytest.skip("no wheel was built: ./test python builds one")
    [found] = wheels
    return found


def test_the_wheel_brings_the_library_and_the_program(wheel: Path, tmp_path: Path):
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", wheel)
    version = version_of(tmp_path / "env/bin/runguard")
    assert version.startswith(f"runguard {wheel.name.split('-')[1]}"), "the library and the program are of one version"
    # What `uvx runguard-breaker` and `pipx run runguard-breaker` start, also through a link to it.
    (tmp_path / "link").symlink_to(tmp_path / "env/bin/runguard-breaker")
    assert version == version_of(tmp_path / "env/bin/runguard-breaker") == version_of(tmp_path / "link")
    capped = "import runguard\nwith runguard.guard(max_usd=1) as run: print(run.tool(lambda: 7, name='seven')())"
    assert run(python, "-c", capped).stdout == "7\n"
    run(python, "-m", "pip", "check")


def test_nothing_in_the_wheel_names_the_folder_it_was_made_in(wheel: Path):
    """Two folders give the same bytes."""
    with zipfile.ZipFile(wheel) as archive:
        described = [name for name in archive.namelist() if not name.endswith((".so", "scripts/runguard"))]
        assert any("/sboms/" in name for name in described), described
        assert [name for name in described if str(ROOT).encode() in archive.read(name)] == []


def test_uvx_runs_the_package_by_its_name(wheel: Path, tmp_path: Path):
    uv = Path(os.environ.get("RUNGUARD_UV", ROOT / ".cache/uv/bin/uv"))
    if not uv.exists():
        pytest.skip("uv is not there: ./test installs it")
    home = {**BARE, "HOME": str(tmp_path)}
    words = ("tool", "run", "--quiet", "--offline", "--no-index", "--find-links", wheel.parent, "--python", sys.executable, "runguard-breaker")
    assert version_of(uv, *words, env=home).startswith("runguard 0.")


def test_npx_runs_the_program_of_the_platforms_package(dist: Path, tmp_path: Path):
    (tmp_path / "package.json").write_text('{"private": true}')
    packages = [one(dist, "runguard-cli-0*.tgz"), one(dist, "runguard-cli-linux-x64-*.tgz")]
    home = {**NODE, "HOME": str(tmp_path)}
    run("npm", "install", "--silent", "--offline", "--no-audit", "--no-fund", *packages, env=home, cwd=tmp_path)
    assert run("npx", "--no-install", "runguard", "--version", env=home, cwd=tmp_path).stdout.startswith("runguard 0.")
    shutil.rmtree(tmp_path / "node_modules/@runguard/cli-linux-x64")
    alone = subprocess.run(["npx", "--no-install", "runguard", "--version"], env=home, cwd=tmp_path, capture_output=True, text=True)
    assert alone.returncode == 1 and "@runguard/cli-linux-x64 is not installed" in alone.stderr
    assert " ".join(package.name for package in packages) in alone.stderr, "the files to install are named"


def test_the_same_program_gives_the_same_bytes(dist: Path, tmp_path: Path, request: pytest.FixtureRequest):
    program = tmp_path / "runguard"
    if RELEASED:
        with tarfile.open(one(dist, "runguard-*-linux-x86_64.tar.gz")) as archive:
            [member] = [member for member in archive if member.name.endswith("/runguard")]
            program.write_bytes(archive.extractfile(member).read())
        program.chmod(0o755)
    else:
        program = request.getfixturevalue("program")
    again = tmp_path / "again"
    time.sleep(1.1)
    # What is compiled is not compiled again: a wheel around its library, and of a release the SDK around its WebAssembly.
    [wheel] = [path for path in dist.glob("*.whl") if "musllinux" not in path.name] or [None]
    make(again, program, "tarball", "deb", "image", "sbom", "npx", *(["npm"] if RELEASED else []), wheel=wheel)
    made = {path.name for path in again.iterdir()} - {"SHA256SUMS"}
    assert len(made) == 6 + (wheel is not None) + bool(RELEASED)
    assert [name for name in sorted(made) if (again / name).read_bytes() != (dist / name).read_bytes()] == []


@only_released
def test_the_program_for_arm64_decides(dist: Path, tmp_path: Path):
    """Emulated; what it asks of the kernel is answered by this one."""
    with tarfile.open(one(dist, "runguard-*-linux-aarch64.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    [top] = tmp_path.iterdir()
    emulated = ("qemu-aarch64", top / "runguard")
    assert version_of(*emulated).startswith("runguard 0.")
    with serving(*emulated, "serve", "--port", "0", "--data", tmp_path / "data", env=BARE) as address:
        asked = urllib.request.Request(f"{address}/guard/ai-task-retry?status=200", b'{"session_id":"s","task_name":"t"}')
        answers = [json.load(urllib.request.urlopen(asked, timeout=30)) for _ in range(3)]
    assert [answer["allow"] for answer in answers] == [True, True, False]


@only_released
def test_a_release_is_small(dist: Path):
    with tarfile.open(one(dist, "runguard-*-linux-x86_64.tar.gz")) as archive:
        [program] = [member for member in archive if member.name.endswith("/runguard")]
    assert one(dist, "*.oci.tar").stat().st_size <= 25_000_000
    assert program.size <= 20_000_000


@only_released
def test_a_release_is_static_and_names_no_machine(dist: Path, tmp_path: Path):
    with tarfile.open(one(dist, "runguard-*-linux-x86_64.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    [top] = tmp_path.iterdir()
    assert "INTERP" not in run("readelf", "--program-headers", top / "runguard").stdout
    assert b"/root/" not in (top / "runguard").read_bytes(), "a path of the machine it was built on"


@only_released
def test_the_wheels_of_a_release_ask_only_for_the_c_library_they_are_named_after(dist: Path, tmp_path: Path):
    needed = {"manylinux2014": "libc.so.6", "musllinux": "libc.so"}
    for fits, library in needed.items():
        wheel = one(dist, f"*{fits}*.whl")
        with zipfile.ZipFile(wheel) as archive:
            [core] = [name for name in archive.namelist() if name.endswith(".so")]
            module = Path(archive.extract(core, tmp_path / fits))
        asked = re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "--dynamic", module).stdout)
        assert library in asked, asked
        glibc = "GLIBC_" in run("readelf", "--version-info", module).stdout
        assert glibc == (fits != "musllinux"), wheel.name


@only_released
def test_the_sdk_of_a_release_needs_no_rust(dist: Path, tmp_path: Path):
    (tmp_path / "package.json").write_text('{"private": true, "type": "module"}')
    home = {**NODE, "HOME": str(tmp_path)}
    run("npm", "install", "--silent", "--offline", "--no-audit", "--no-fund", one(dist, "runguard-sdk-*.tgz"), env=home, cwd=tmp_path)
    capped = "import { withGuard } from '@runguard/sdk'; console.log(await withGuard({ maxUsd: 1 }, (run) => run.tool(() => 7, 'seven')()))"
    assert run("node", "--input-type=module", "-e", capped, env=home, cwd=tmp_path).stdout.strip().startswith("7")


def test_the_guide_names_every_file(dist: Path):
    guide = (ROOT / "docs/install.md").read_text()
    named = re.findall(r"`(\S+\.(?:gz|deb|tar|whl|tgz|json))`", guide)
    patterns = [name.replace("…", "*") for name in named]
    for file in dist.iterdir():
        assert file.name == "SHA256SUMS" or any(file.match(pattern) for pattern in patterns), file.name
    if RELEASED:
        for pattern in patterns:
            one(dist, pattern)


def test_the_version_stands_in_one_place(tmp_path: Path):
    """Where a file cannot read it, it is compared: here every file says another one, and each is named."""
    run(sys.executable, ROOT / "package", "--check")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    copied = [name for name in listed if name.split("/")[0] in ("Cargo.toml", "README.md", "docs", "deploy", "sdk", "package") and (ROOT / name).is_file()]
    for name in copied:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    manifest = tmp_path / "Cargo.toml"
    manifest.write_text(re.sub(r'^version = "[^"]+"', 'version = "7.8.9"', manifest.read_text(), flags=re.MULTILINE))
    told = subprocess.run([sys.executable, str(tmp_path / "package"), "--check"], capture_output=True, text=True)
    named = {line.split(" says ")[0] for line in told.stderr.splitlines()}
    assert told.returncode == 1 and named >= {
        "Cargo.toml", "sdk/typescript/package.json", "sdk/typescript/package-lock.json", "sdk/npm/package.json", "deploy/helm/Chart.yaml",
        "deploy/kubernetes/kustomization.yaml", "deploy/compose.yaml", "docs/install.md", "sdk/python/README.md",
    }
    assert "version" in tomllib.loads((ROOT / "sdk/python/pyproject.toml").read_text())["project"]["dynamic"]


def test_what_is_missing_is_told_before_anything_is_compiled(tmp_path: Path):
    """Where there is neither cargo nor npm, it is npm that is named."""
    (tmp_path / "python3").symlink_to(sys.executable)
    told = subprocess.run([sys.executable, str(ROOT / "package"), "npm"], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert told.returncode == 1 and "which is not there: install Node" in told.stderr, told.stderr


def test_wrong_words_are_told(tmp_path: Path):
    told = subprocess.run([sys.executable, str(ROOT / "package"), "rpm"], capture_output=True, text=True)
    assert told.returncode == 2 and "there is no package rpm" in told.stderr
