"""Alerts by mail, handed to a real mail server: with TLS begun on the way, with TLS from the first byte, with a password, and refused."""

from __future__ import annotations

import email
import email.policy
import ssl
import subprocess
import time
from dataclasses import dataclass, field

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult

from catalogue import CIRCUIT_RECORD
from runguard_process import free_port, run_cli

LOGIN = {"SMTP_USER": "runguard", "SMTP_PASSWORD": "pa55 wörd"}
PATIENCE_SECONDS = 30


@dataclass
class Mailbox:
    """What a mail server does with a message."""

    got: list = field(default_factory=list)
    refuse: list[str] = field(default_factory=list)

    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("nobody"):
            return "550 5.1.1 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        if self.refuse:
            return self.refuse.pop(0)
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        self.got.append((session.ssl is not None, getattr(session, "authenticated", False), envelope, message))
        return "250 taken"

    def wait_for(self, count: int) -> list:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self.got) < count:
            assert time.monotonic() < deadline, f"waited for {count} mails, there are {len(self.got)}"
            time.sleep(0.02)
        return self.got


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A certificate for localhost, which whoever trusts it takes."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


@pytest.fixture
def mail_server():
    """`mail_server(tls="start" | "first" | None)`: its box, and its port."""
    running = []

    def start(context=None, tls=None, login=False):
        box, port = Mailbox(), free_port()

        def check(server, session, envelope, mechanism, data):
            is_right = (data.login.decode(), data.password.decode()) == (LOGIN["SMTP_USER"], LOGIN["SMTP_PASSWORD"])
            return AuthResult(success=is_right, handled=False)

        options = {"authenticator": check, "auth_required": login, "auth_require_tls": tls == "start"} if login else {}
        if tls == "start":
            options |= {"tls_context": context, "require_starttls": True}

        class Server(Controller):
            def factory(self):
                return SMTP(self.handler, hostname="localhost", **options)

        server = Server(box, hostname="127.0.0.1", port=port, ssl_context=context if tls == "first" else None)
        server.start()
        running.append(server)
        return box, port

    yield start
    for server in running:
        server.stop()


def config(url: str, to='["ops@example.com", "night@example.com"]', login=False) -> str:
    password = 'username_env = "SMTP_USER"\npassword_env = "SMTP_PASSWORD"\n' if login else ""
    return f'''
[server]
public_url = "https://guard.example.com"
[alerts]
backoff = "50ms"
[[alerts.target]]
name = "mail"
kind = "email"
url = "{url}"
from = "runguard@example.com"
to = {to}
{password}allow_private = true
'''


def trip(server, endpoint="bestellungen-ü\r\nBcc: thief@example.com"):
    client = server.client()
    for number in range(10):
        client.recorded(CIRCUIT_RECORD, endpoint_key=endpoint, session_id=f"s{number}", attempt=1, outcome="failure")


def test_an_alert_is_a_mail_that_people_can_read(serve, mail_server):
    box, port = mail_server()
    server = serve(config(f"smtp://127.0.0.1:{port}"), virtual_clock=False)
    trip(server)
    [(_, _, envelope, message)] = box.wait_for(1)
    assert envelope.mail_from == "runguard@example.com" and envelope.rcpt_tos == ["ops@example.com", "night@example.com"]
    assert message["from"] == "RunGuard <runguard@example.com>" and message["to"] == "ops@example.com, night@example.com"
    assert message["bcc"] is None, "what users name stays in the subject"
    assert "bestellungen-ü" in message["subject"] and message["auto-submitted"] == "auto-generated"
    assert message["date"].datetime.timestamp() == pytest.approx(time.time(), abs=120)
    text = message.get_content()
    assert "Severity:" in text and "Open the dashboard: https://guard.example.com/?view=" in text
    assert message["message-id"].split("@")[0].strip("<") in text


@pytest.mark.parametrize("tls", ["start", "first"])
def test_a_password_goes_over_tls_only_and_to_the_server_that_was_meant(serve, mail_server, authority, tls):
    cert, context = authority
    box, port = mail_server(context, tls, login=True)
    url = f"{'smtps' if tls == 'first' else 'smtp'}://localhost:{port}"
    environment = {**LOGIN, "SSL_CERT_FILE": str(cert)}
    server = serve(config(url, login=True), virtual_clock=False, environment=environment)
    trip(server, "orders")
    [(is_tls, is_known, _, message)] = box.wait_for(1)
    # A server that speaks TLS from the first byte does not say of a session that it does.
    assert (is_tls or tls == "first") and is_known and "orders" in message["subject"]
    # A server whose certificate nobody vouches for is told nothing.
    stranger = serve(config(url, login=True), virtual_clock=False, environment=LOGIN)
    [tested] = stranger.client().post("/v1/alerts/test").json["tested"]
    assert not tested["delivered"] and "TLS" in tested["problem"], tested
    wrong = serve(config(url, login=True), virtual_clock=False, environment={**environment, "SMTP_PASSWORD": "guessed"})
    [tested] = wrong.client().post("/v1/alerts/test").json["tested"]
    assert not tested["delivered"] and "check username_env and password_env" in tested["problem"], tested
    assert "guessed" not in wrong.log() and len(box.got) == 1


def test_what_is_refused_for_now_is_tried_again_and_what_is_refused_is_given_up(serve, mail_server):
    box, port = mail_server()
    box.refuse = ["451 4.3.0 try again later"]
    server = serve(config(f"smtp://127.0.0.1:{port}"), virtual_clock=False)
    trip(server, "orders")
    box.wait_for(1)
    nobody = serve(config(f"smtp://127.0.0.1:{port}", to='["nobody@example.com"]'), virtual_clock=False)
    [tested] = nobody.client().post("/v1/alerts/test").json["tested"]
    assert not tested["delivered"] and "550" in tested["problem"] and "`from` and `to`" in tested["problem"], tested
    [tested] = serve(config("smtp://127.0.0.1:9"), virtual_clock=False).client().post("/v1/alerts/test").json["tested"]
    assert "cannot connect" in tested["problem"], tested


@pytest.mark.parametrize(("given", "wrong"), [
    ('url = "https://mail.example.com"\nfrom = "a@b"\nto = ["c@d"]', "smtps://"),
    ('url = "smtp://mail.example.com"\nto = ["c@d"]', "from"),
    ('url = "smtp://mail.example.com"\nfrom = "a@b"', "to"),
    ('url = "smtp://mail.example.com"\nfrom = "a@b"\nto = ["Anna <c@d>"]', "plain addresses"),
    ('url = "smtp://mail.example.com"\nfrom = "a@b"\nto = ["c@d"]\nusername_env = "U"', "go together"),
    ('url = "smtp://user:pw@mail.example.com"\nfrom = "a@b"\nto = ["c@d"]', "password"),
])
def test_a_target_that_cannot_work_is_refused_at_the_start(tmp_path, given, wrong):
    file = tmp_path / "runguard.toml"
    file.write_text(f'[[alerts.target]]\nname = "mail"\nkind = "email"\n{given}\n')
    checked = run_cli("settings", "check", file)
    assert checked.returncode == 2 and wrong in checked.stderr, checked


def test_a_private_mail_server_is_asked_only_where_that_is_allowed(serve, mail_server):
    box, port = mail_server()
    server = serve(config(f"smtp://127.0.0.1:{port}").replace("allow_private = true", ""), virtual_clock=False)
    [tested] = server.client().post("/v1/alerts/test").json["tested"]
    assert not tested["delivered"] and "allow_private" in tested["problem"] and box.got == [], tested
