"""TLS, HTTP/2, and what clients of the wrong kind are told."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from raw import ask, head, status_of, wait_until
from runguard_process import ServerDidNotStart, free_port, run_cli


def certificate(folder: Path, name: str, *options: str) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", *options, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def serve_tls(serve, tmp_path):
    cert, key = certificate(tmp_path / "tls", "first")
    server = serve(start=False, virtual_clock=False, arguments=("--tls-cert", str(cert), "--tls-key", str(key)))
    server.launch()
    deadline = time.monotonic() + 30
    while "RunGuard is ready" not in server.log():
        assert time.monotonic() < deadline and server.process.poll() is None, server.log()
        time.sleep(0.02)
    return server, cert, key


def curl(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["curl", "-sS", "--max-time", "20", *arguments], capture_output=True, text=True)


def served_name(port: int) -> str:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as tls:
        der = tls.getpeercert(binary_form=True)
    return subprocess.run(["openssl", "x509", "-inform", "der", "-noout", "-subject"], input=der, capture_output=True, check=True).stdout.decode()


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_https_speaks_both_versions(serve, tmp_path, version):
    server, cert, _ = serve_tls(serve, tmp_path)
    asked = curl(version, "--cacert", str(cert), "-w", " %{http_version} %{http_code}", f"https://localhost:{server.port}/guard/handoff",
                 "-d", '{"session_id":"s","source_bot":"a","target_bot":"b"}')
    body, _, rest = asked.stdout.partition("} ")
    assert json.loads(body + "}")["allow"] is True, asked
    assert rest == ("2 200" if version == "--http2" else "1.1 200"), asked


def test_a_plain_request_to_a_tls_port_is_told(serve, tmp_path):
    server, _, _ = serve_tls(serve, tmp_path)
    answer = ask(server.port, head("GET", "/healthz"))
    assert status_of(answer) == 400 and b"https://" in answer, answer


def test_a_changed_certificate_is_taken_over_and_a_broken_one_refused(serve, tmp_path):
    server, cert, key = serve_tls(serve, tmp_path)
    assert "first" in served_name(server.port)
    key_before = key.read_text()
    key.write_text("this is no key")
    wait_until(lambda: "the changed certificate is refused" in server.log())
    assert "first" in served_name(server.port)
    asked = lambda path: curl("-k", f"https://localhost:{server.port}{path}").stdout
    assert json.loads(asked("/readyz")) == {"status": "ready", "refused": ["certificate"]}
    assert 'runguard_reload_refused{what="certificate"} 1' in asked("/metrics")
    [refused] = json.loads(asked("/v1/settings"))["refused"]
    assert refused["what"] == "certificate" and "key" in refused["error"], refused
    key.write_text(key_before)
    for source, target in zip(certificate(tmp_path / "tls", "second"), (cert, key)):
        shutil.copy(source, target)
    wait_until(lambda: "second" in served_name(server.port))
    wait_until(lambda: json.loads(asked("/readyz")) == {"status": "ready"})


@pytest.mark.parametrize("broken, says", [("missing", "cannot read a certificate"), ("swapped", "cannot"), ("other", "cannot be used")])
def test_files_that_cannot_be_used_are_named_at_the_start(serve, tmp_path, broken, says):
    cert, key = certificate(tmp_path / "tls", "first")
    match broken:
        case "missing":
            cert = tmp_path / "nothing.pem"
        case "swapped":
            cert, key = key, cert
        case "other":
            _, key = certificate(tmp_path / "tls", "another")
    server = serve(start=False, arguments=("--tls-cert", str(cert), "--tls-key", str(key)))
    with pytest.raises(ServerDidNotStart) as failed:
        server.start()
    assert says in failed.value.log and str(tmp_path / "tls") in failed.value.log or broken == "missing", failed.value.log


def test_a_certificate_needs_its_key(serve, tmp_path):
    cert, _ = certificate(tmp_path / "tls", "first")
    with pytest.raises(ServerDidNotStart) as failed:
        serve(arguments=("--tls-cert", str(cert)))
    assert "--tls-key" in failed.value.log


def test_h2c_with_prior_knowledge(serve):
    server = serve(virtual_clock=False)
    url = f"http://127.0.0.1:{server.port}"
    asked = curl("--http2-prior-knowledge", "-w", " %{http_version} %{http_code}", f"{url}/guard/handoff",
                 "-d", '{"session_id":"s","source_bot":"a","target_bot":"b"}')
    assert '"allow":true' in asked.stdout and asked.stdout.endswith(" 2 200"), asked
    foreign = curl("--http2-prior-knowledge", "-w", "%{http_code}", "-o", "/dev/null", "-H", "Host: rebound.example", f"{url}/v1/decisions")
    assert foreign.stdout == "403", foreign
    body = "x" * 300_000
    large = curl("--http2-prior-knowledge", "-w", "%{http_code}", "-o", "/dev/null", f"{url}/guard/stall", "-d",
                 json.dumps({"session_id": "s", "tool": "t", "result": body[:60_000]}))
    assert large.stdout == "200", large


def test_a_preface_in_pieces_is_understood(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        for piece in (b"PRI * HT", b"TP/2.0\r\n\r\nSM", b"\r\n\r\n"):
            connection.sendall(piece)
            time.sleep(0.05)
        connection.sendall(b"\0\0\0\x04\0\0\0\0\0")
        # The server's settings frame: type 4 on stream 0.
        frame = connection.recv(9)
        assert frame[3] == 4, frame


def signed_certificate(folder: Path) -> tuple[Path, Path, Path]:
    """An authority of one's own, and a certificate that it has signed."""
    folder.mkdir()
    authority, authority_key, cert, key, request = (folder / name for name in ("ca.pem", "ca.key", "cert.pem", "cert.key", "cert.csr"))
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl = lambda *arguments: subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
    openssl("req", "-x509", *curve, "-days", "2", "-subj", "/CN=private authority", "-keyout", authority_key, "-out", authority)
    openssl("req", *curve, "-subj", "/CN=runguard", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", request)
    openssl("x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key, "-CAcreateserial", "-days", "2", "-copy_extensions", "copy",
            "-out", cert)
    return authority, cert, key


def test_the_command_line_trusts_a_private_authority(serve, tmp_path):
    authority, cert, key = signed_certificate(tmp_path / "tls")
    server = serve(start=False, virtual_clock=False, arguments=("--tls-cert", str(cert), "--tls-key", str(key)))
    server.launch()
    wait_until(lambda: "RunGuard is ready" in server.log())
    url = f"https://localhost:{server.port}"
    decisions = lambda *arguments, **env: run_cli("decisions", "--url", url, *arguments, env=env)
    for trusting in (decisions("--ca", authority), decisions(RUNGUARD_CA=str(authority)), decisions(SSL_CERT_FILE=str(authority))):
        assert trusting.returncode == 0 and "No decisions" in trusting.stdout, trusting
    strange = decisions()
    assert strange.returncode == 4 and "certificate" in strange.stderr and "--ca" in strange.stderr, strange
    assert "Is it running" not in strange.stderr, strange
    other, _ = certificate(tmp_path / "other", "other")
    wrong = decisions("--ca", other)
    assert wrong.returncode == 4 and "do not vouch" in wrong.stderr, wrong
    for nonsense in (tmp_path / "missing.pem", key):
        refused = decisions("--ca", nonsense)
        assert refused.returncode == 2 and "--ca" in refused.stderr, refused
    nobody = run_cli("decisions", "--url", f"https://localhost:{free_port()}")
    assert nobody.returncode == 4 and "Is it running" in nobody.stderr, nobody


def test_an_authority_that_serves_is_named_as_the_trouble(serve, tmp_path):
    server, cert, _ = serve_tls(serve, tmp_path)
    refused = run_cli("decisions", "--url", f"https://localhost:{server.port}", "--ca", cert)
    assert refused.returncode == 4 and "CA:FALSE" in refused.stderr, refused


def test_where_the_system_trusts_nobody_it_is_said(serve, tmp_path):
    server, _, _ = serve_tls(serve, tmp_path)
    (tmp_path / "none.pem").write_text("")
    trustless = run_cli("decisions", "--url", f"https://localhost:{server.port}", env={"SSL_CERT_FILE": str(tmp_path / "none.pem")})
    assert trustless.returncode == 4 and "--ca" in trustless.stderr and "panicked" not in trustless.stderr, trustless
    plain = serve(virtual_clock=False)
    assert run_cli("decisions", "--url", plain.url, env={"SSL_CERT_FILE": str(tmp_path / "none.pem")}).returncode == 0
