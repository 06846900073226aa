//! MCP servers, good and bad.
//!
//! The good one is the protocol's reference server, from npm: `npm ci` in `tests/mcp` installs it. Without it these tests
//! print a line and pass, unless `CI_REQUIRE_MCP=1`. The bad one is a script, which needs Python 3.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{any, post};
use axum::{Json, Router};
use runguard_agent::settings::McpSettings;
use runguard_agent::tool::mcp::McpServer;
use runguard_agent::tool::{Effect, Tool, ToolOutput, ToolSet};
use runguard_core::time::Span;
use serde_json::{Value, json};
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp")
}

fn settings(command: &[&str]) -> McpSettings {
    McpSettings {
        name: "srv".to_owned(),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        env: std::collections::BTreeMap::new(),
        url: None,
        headers: std::collections::BTreeMap::new(),
        allow: None,
        start_timeout: Span::from_seconds(60),
    }
}

fn at(url: &str) -> McpSettings {
    McpSettings { url: Some(url.to_owned()), ..settings(&[]) }
}

fn hostile(mode: &str) -> McpSettings {
    let script = folder().join("hostile.py");
    settings(&["python3", script.to_str().unwrap(), mode])
}

fn hostile_with(mode: &str, file: &Path) -> McpSettings {
    let mut settings = hostile(mode);
    settings.command.push(file.to_str().unwrap().to_owned());
    settings
}

/// The reference server's script, or `None` when it is not installed and need not be.
fn reference() -> Option<String> {
    let installed = std::env::var_os("MCP_REFERENCE").map_or_else(folder, PathBuf::from);
    let script = installed.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    if script.is_file() {
        return Some(script.to_str().unwrap().to_owned());
    }
    assert!(
        std::env::var("CI_REQUIRE_MCP").as_deref() != Ok("1"),
        "the reference server is not installed: run `npm ci` in {}",
        folder().display()
    );
    println!("skipped: the reference server is not installed; run `npm ci` in {}", folder().display());
    None
}

fn tool(server: &McpServer, name: &str) -> Arc<dyn Tool> {
    let tools = server.tools();
    let names: Vec<_> = tools.iter().map(|tool| tool.spec().name.clone()).collect();
    tools.into_iter().find(|tool| tool.spec().name == name).unwrap_or_else(|| panic!("no {name} among {names:?}"))
}

async fn call(server: &McpServer, name: &str, arguments: Value) -> ToolOutput {
    timeout(Duration::from_secs(60), tool(server, name).call(&arguments, &CancellationToken::new())).await.expect("a call never hangs")
}

async fn refused(settings: &McpSettings) -> String {
    McpServer::connect(settings).await.expect_err("it must not connect")
}

/// Whether the process still does something; one that waits to be collected does not.
fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with(['Z', 'X']))
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} did not come about");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn kill(pid: u32) {
    assert!(std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// The reference server over HTTP, on a port of its own.
async fn serve_reference(script: &str, port: u16) -> Child {
    let mut child = Command::new("node")
        .args([script, "streamableHttp"])
        .env("PORT", port.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line.contains("listening") {
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return child;
        }
    }
    panic!("the reference server did not come up");
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What every server must be able to do, over either transport.
async fn exercise(server: &McpServer) {
    let mut set = ToolSet::new();
    for tool in server.tools() {
        set.add(tool).unwrap();
    }
    let echo = set.get("srv_echo").expect("echo is there").spec();
    assert!(echo.description.to_lowercase().contains("echo"), "{}", echo.description);
    assert_eq!(echo.input_schema["type"], "object");
    assert_eq!(echo.input_schema["properties"]["message"]["type"], "string");
    assert_eq!((echo.effect, echo.parallel), (Effect::ReadOnly, true));
    let toggles = set.get("srv_toggle-simulated-logging").unwrap().spec();
    assert_eq!((toggles.effect, toggles.parallel), (Effect::Changes, false));

    assert_eq!(call(server, "srv_echo", json!({ "message": "grüße\n2" })).await, ToolOutput::ok("Echo: grüße\n2"));
    assert_eq!(call(server, "srv_get-sum", json!({ "a": 2, "b": 40 })).await.text, "The sum of 2 and 40 is 42.");

    let bad = call(server, "srv_get-sum", json!({ "a": "two" })).await;
    assert!(bad.is_error && bad.text.contains("expected number"), "{bad:?}");
    assert_eq!(call(server, "srv_echo", json!("text")).await, ToolOutput::error("the arguments must be a JSON object"));

    let image = call(server, "srv_get-tiny-image", json!({})).await;
    let line = image.text.lines().find(|line| line.starts_with("[image, image/png, ")).unwrap_or_else(|| panic!("{image:?}"));
    assert!(line.ends_with(" bytes]") && !image.text.contains("iVBOR"), "{image:?}");

    let weather = call(server, "srv_get-structured-content", json!({ "location": "Chicago" })).await;
    assert_eq!(weather.text.matches("Light rain / drizzle").count(), 1, "{weather:?}");

    let links = call(server, "srv_get-resource-links", json!({ "count": 2 })).await;
    assert!(links.text.contains("demo://resource/"), "{links:?}");
    let resource = call(server, "srv_get-resource-reference", json!({ "resourceType": "Text", "resourceId": 1 })).await;
    assert!(resource.text.contains("plaintext resource"), "{resource:?}");

    let cancel = CancellationToken::new();
    let long = tool(server, "srv_trigger-long-running-operation");
    let arguments = json!({ "duration": 300, "steps": 3000 });
    let (output, ()) = tokio::join!(timeout(Duration::from_secs(20), long.call(&arguments, &cancel)), async {
        // A second call goes through beside the long one.
        assert_eq!(call(server, "srv_echo", json!({ "message": "beside" })).await.text, "Echo: beside");
        cancel.cancel();
    });
    let output = output.expect("a cancelled call returns at once");
    assert!(output.is_error && output.text.starts_with("cancelled"), "{output:?}");
    assert_eq!(call(server, "srv_echo", json!({ "message": "after" })).await.text, "Echo: after");
}

#[tokio::test]
async fn the_reference_server_over_stdio() {
    let Some(script) = reference() else { return };
    let mut settings = settings(&["node", &script, "stdio"]);
    settings.env.insert("GREETING".to_owned(), "for $USER_OF_TEST, $$5".to_owned());
    let problem = refused(&settings).await;
    assert!(problem.contains("env.GREETING") && problem.contains("USER_OF_TEST"), "{problem}");
    settings.env.insert("GREETING".to_owned(), "from $CARGO_PKG_NAME, $$5".to_owned());
    let server = McpServer::connect(&settings).await.unwrap();
    exercise(&server).await;

    let environment: Value = serde_json::from_str(&call(&server, "srv_get-env", json!({})).await.text).unwrap();
    assert_eq!(environment["GREETING"], "from runguard-agent, $5");
    assert!(environment["PATH"].is_string());
    // Set by cargo for this test, and as private as a key.
    assert_eq!(environment["CARGO_MANIFEST_DIR"], Value::Null);
    server.close().await;
    let after = call(&server, "srv_echo", json!({ "message": "x" })).await;
    assert!(after.is_error && after.text.contains("closed"), "{after:?}");
}

#[tokio::test]
async fn the_reference_server_over_http() {
    let Some(script) = reference() else { return };
    let port = free_port();
    let mut process = serve_reference(&script, port).await;
    let server = McpServer::connect(&at(&format!("http://127.0.0.1:{port}/mcp"))).await.unwrap();
    exercise(&server).await;

    // The server goes away in the middle of a call: the call ends, and does not wait for its own timeout.
    let long = tool(&server, "srv_trigger-long-running-operation");
    let (never, arguments) = (CancellationToken::new(), json!({ "duration": 300, "steps": 3000 }));
    let (output, ()) = tokio::join!(timeout(Duration::from_secs(30), long.call(&arguments, &never)), async {
        assert_eq!(call(&server, "srv_echo", json!({ "message": "up" })).await.text, "Echo: up");
        process.kill().await.unwrap();
    });
    let output = output.expect("a lost server is noticed");
    assert!(output.is_error, "{output:?}");
    let gone = call(&server, "srv_echo", json!({ "message": "x" })).await;
    assert!(gone.is_error && gone.text.contains("could not be reached"), "{gone:?}");

    let _process = serve_reference(&script, port).await;
    let back = call(&server, "srv_echo", json!({ "message": "back" })).await;
    assert!(!back.is_error && back.text.contains("connected to again") && back.text.ends_with("Echo: back"), "{back:?}");
    server.close().await;
}

#[tokio::test]
async fn only_the_allowed_tools_and_a_wrong_name_lists_them() {
    let Some(script) = reference() else { return };
    let mut settings = settings(&["node", &script, "stdio"]);
    settings.allow = Some(vec!["echo".to_owned()]);
    let server = McpServer::connect(&settings).await.unwrap();
    let names: Vec<_> = server.tools().iter().map(|tool| tool.spec().name.clone()).collect();
    assert_eq!(names, ["srv_echo"]);
    settings.allow = Some(vec!["echo".to_owned(), "delete_everything".to_owned()]);
    let problem = refused(&settings).await;
    assert!(problem.contains("'delete_everything'") && problem.contains("echo, ") && problem.contains("get-sum"), "{problem}");
}

#[tokio::test]
async fn a_killed_server_is_started_again_and_the_model_is_told() {
    let server = McpServer::connect(&hostile("plain")).await.unwrap();
    let first: u32 = call(&server, "srv_pid", json!({})).await.text.parse().unwrap();
    kill(first);
    until("the end of the server", || !is_alive(first)).await;
    let mut after = call(&server, "srv_pid", json!({})).await;
    if after.is_error {
        // Dead, but the news had not come round: that call is lost, and the next is not.
        assert!(after.text.contains("was lost during the call") && after.text.contains("signal: 9"), "{after:?}");
        after = call(&server, "srv_pid", json!({})).await;
    }
    assert!(!after.is_error && after.text.starts_with("[the MCP server 'srv' had been lost (it ended (signal: 9"), "{after:?}");
    let second: u32 = after.text.lines().last().unwrap().parse().unwrap();
    assert_ne!(first, second);
    assert_eq!(call(&server, "srv_pid", json!({})).await.text, second.to_string(), "told once");
    server.close().await;
    assert!(!is_alive(second));
}

#[tokio::test]
async fn a_server_that_dies_in_a_call_leaves_its_last_words() {
    let server = McpServer::connect(&hostile("plain")).await.unwrap();
    let start = Instant::now();
    let died = call(&server, "srv_die", json!({})).await;
    assert!(start.elapsed() < Duration::from_secs(5), "a dead server is noticed at once");
    assert!(died.is_error, "{died:?}");
    for part in ["exit status: 3", "[31mout of cheese", "not known", "For the next call it is started again"] {
        assert!(died.text.contains(part), "{part} in {died:?}");
    }
    assert!(!died.text.contains('\u{1b}'));
    let after = call(&server, "srv_go", json!({ "n": 1 })).await;
    assert!(!after.is_error && after.text.ends_with(r#"arguments: {"n": 1}"#), "{after:?}");
}

#[tokio::test]
async fn closing_and_dropping_leave_nobody_behind() {
    let temporary = tempfile::tempdir().unwrap();
    for ending in ["close", "drop"] {
        let file = temporary.path().join(ending);
        let server = McpServer::connect(&hostile_with("family", &file)).await.unwrap();
        let pids: Vec<u32> = fs::read_to_string(&file).unwrap().split(' ').map(|pid| pid.parse().unwrap()).collect();
        assert!(pids.iter().all(|&pid| is_alive(pid)));
        if ending == "close" {
            server.close().await;
            assert!(!is_alive(pids[0]));
        } else {
            drop(server);
        }
        until(&format!("the end of {pids:?} after {ending}"), || pids.iter().all(|&pid| !is_alive(pid))).await;
    }
}

#[test]
fn a_runtime_that_ends_takes_the_server_with_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (server, pid) = runtime.block_on(async {
        let server = McpServer::connect(&hostile("stubborn")).await.unwrap();
        let pid: u32 = call(&server, "srv_pid", json!({})).await.text.parse().unwrap();
        (server, pid)
    });
    drop(runtime);
    let start = Instant::now();
    while is_alive(pid) {
        assert!(start.elapsed() < Duration::from_secs(20), "{pid} is an orphan");
        std::thread::yield_now();
    }
    // Outside of any runtime, and nothing to do any more.
    drop(server);
}

#[tokio::test]
async fn a_server_that_will_not_go_is_killed() {
    let server = McpServer::connect(&hostile("stubborn")).await.unwrap();
    let pid: u32 = call(&server, "srv_pid", json!({})).await.text.parse().unwrap();
    timeout(Duration::from_secs(15), server.close()).await.expect("close has an end");
    assert!(!is_alive(pid));
}

#[tokio::test]
async fn a_call_that_is_given_up_is_cancelled_at_the_server() {
    let temporary = tempfile::tempdir().unwrap();
    let file = temporary.path().join("cancelled");
    let done = temporary.path().join("cancelled.done");
    for by_token in [true, false] {
        let _ = fs::remove_file(&done);
        let server = McpServer::connect(&hostile_with("cancel", &file)).await.unwrap();
        let go = tool(&server, "srv_go");
        let (cancel, arguments) = (CancellationToken::new(), json!({}));
        {
            let mut running = go.call(&arguments, &cancel);
            assert!(timeout(Duration::from_millis(300), &mut running).await.is_err(), "it waits");
            if by_token {
                cancel.cancel();
                let output = running.await;
                assert!(output.is_error && output.text.starts_with("cancelled"), "{output:?}");
            }
        }
        until("the cancellation", || done.is_file()).await;
        let seen: Value = serde_json::from_str(&fs::read_to_string(&done).unwrap()).unwrap();
        assert_eq!(seen["asked"], seen["cancelled"]);
        server.close().await;
    }
}

#[tokio::test]
async fn names_are_valid_and_unique_and_descriptions_clean() {
    let server = McpServer::connect(&hostile("names")).await.unwrap();
    let mut set = ToolSet::new();
    for tool in server.tools() {
        set.add(tool).unwrap();
    }
    let names: Vec<&str> = set.specs().iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names.len(), 11, "the double is left out: {names:?}");
    assert!(names[0].starts_with("srv_a_b_") && names[2].starts_with("srv_a_b_"), "{names:?}");
    assert_eq!(names[1], "srv_a_b");
    assert_eq!(names[10], "srv_only_one");
    assert!(names[3].len() == 64 && names[4].len() == 64, "{names:?}");
    let spec = |name: &str| set.specs().iter().find(|spec| spec.name == name).unwrap();
    assert_eq!(set.specs()[0].description, "[2Jred text end");
    assert!(set.specs()[0].parallel && !spec("srv_a_b").parallel);
    assert!(spec("srv_long").description.len() <= 2000);
    assert_eq!(spec("srv_string").input_schema["type"], "object");
    assert_eq!(spec("srv_typeless").input_schema, json!({ "properties": { "q": { "type": "string" } }, "type": "object" }));
    assert!(spec("srv_huge").input_schema.to_string().len() < 200 && spec("srv_huge").description.contains("too long"));
    assert!(spec("srv_bare").description.contains("Bare title"));
    // Calls go to the server's own name.
    let first = call(&server, names[0], json!({})).await;
    assert_eq!(first.text, "arguments: {}");
}

#[tokio::test]
async fn lists_have_pages_and_an_end() {
    let server = McpServer::connect(&hostile("pages")).await.unwrap();
    let names: Vec<_> = server.tools().iter().map(|tool| tool.spec().name.clone()).collect();
    assert_eq!(names, ["srv_first", "srv_second"]);

    let problem = refused(&hostile("endless-list")).await;
    assert!(problem.contains("does not end"), "{problem}");
    let problem = refused(&hostile("crowd")).await;
    assert!(problem.contains("more than 512 tools") && problem.contains("allow"), "{problem}");
    let some = McpSettings { allow: Some(vec!["t599".to_owned()]), ..hostile("crowd") };
    assert_eq!(McpServer::connect(&some).await.unwrap().tools().len(), 1);
    let problem = refused(&hostile("list-nonsense")).await;
    assert!(problem.contains("not a list of tools") && problem.contains("started"), "{problem}");
}

#[tokio::test]
async fn a_server_that_does_not_start_says_what_to_check() {
    let problem = refused(&settings(&["no-such-program-of-mine", "stdio"])).await;
    assert!(problem.contains("'srv'") && problem.contains("'no-such-program-of-mine' was not found"), "{problem}");

    let problem = refused(&hostile("crash")).await;
    assert!(problem.contains("exit status: 7") && problem.contains("no configuration"), "{problem}");
    assert!(problem.contains("line 99") && !problem.contains("line 50"), "{problem}");

    // Long enough for an interpreter to come up on a busy machine: only the server's silence is to be seen.
    let slow = |mode: &str| McpSettings { start_timeout: Span::from_seconds(8), ..hostile(mode) };
    let (silent, hangs) = (slow("silent"), slow("list-hangs"));
    let start = Instant::now();
    let (silent, hangs) = tokio::join!(refused(&silent), refused(&hangs));
    assert!(start.elapsed() < Duration::from_secs(25));
    for part in ["did not answer within 8 s", "start_timeout", "waiting for nothing"] {
        assert!(silent.contains(part), "{silent}");
    }
    assert!(hangs.contains("did not list its tools within 8 s") && hangs.contains("started"), "{hangs}");
}

#[tokio::test]
async fn a_server_of_the_protocol_without_initialize() {
    let server = McpServer::connect(&hostile("modern")).await.unwrap();
    assert_eq!(call(&server, "srv_go", json!({ "a": 1 })).await.text, r#"arguments: {"a": 1}"#);
}

#[tokio::test]
async fn noise_on_the_output_is_passed_over() {
    let server = McpServer::connect(&hostile("noise")).await.unwrap();
    assert_eq!(call(&server, "srv_go", json!({})).await.text, "arguments: {}");
}

#[tokio::test]
async fn whatever_comes_back_is_bounded_and_becomes_text() {
    for (mode, is_error, parts) in [
        ("gigantic", true, vec!["longer than 16 MiB"]),
        ("flood", true, vec!["does not read what it is sent"]),
        ("closes-output", true, vec!["was lost during the call"]),
        ("error", true, vec!["the moon is wrong (code -32050)", r#"{"phase":3}"#]),
        ("nonsense", true, vec!["not the result of a tool"]),
        ("garbled", true, vec!["not the result of a tool"]),
        ("no-result", true, vec!["not the result of a tool"]),
        ("error-without-id", true, vec!["refused the call: Parse error (code -32700)"]),
        ("batch", false, vec!["in a list"]),
        ("mixed", false, vec!["[audio, audio/wav, 3 bytes]\ninside\n[resource file:///b, x/y, 2 bytes]\nfile:///link"]),
        ("structured", false, vec![r#"{"answer":42}"#]),
        ("empty", false, vec!["no output"]),
        ("big", false, vec!["bytes left out"]),
    ] {
        let server = McpServer::connect(&hostile(mode)).await.unwrap();
        let output = call(&server, "srv_go", json!({})).await;
        assert!(output.text.len() <= 1 << 20, "{mode}");
        let shown = &output.text[..output.text.len().min(500)];
        assert_eq!(output.is_error, is_error, "{mode}: {shown}");
        for part in parts {
            assert!(output.text.contains(part), "{mode}: {part} in {shown}");
        }
        server.close().await;
    }
}

async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

fn answer(request: &Value) -> Value {
    let result = match request["method"].as_str().unwrap() {
        "initialize" => {
            json!({ "protocolVersion": request["params"]["protocolVersion"], "capabilities": {}, "serverInfo": { "name": "h", "version": "1" } })
        }
        "tools/list" => json!({ "tools": [{ "name": "go", "inputSchema": { "type": "object" } }] }),
        _ => json!({ "content": [{ "type": "text", "text": "done" }] }),
    };
    json!({ "jsonrpc": "2.0", "id": request["id"], "result": result })
}

#[tokio::test]
async fn http_headers_come_from_the_environment_and_stay_with_their_host() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let elsewhere = Arc::clone(&seen);
    let other = serve(Router::new().fallback(any(move |headers: HeaderMap| async move {
        elsewhere.lock().unwrap().push(headers);
        StatusCode::OK
    })))
    .await;
    let router = Router::new()
        .route(
            "/mcp",
            post(|headers: HeaderMap, Json(request): Json<Value>| async move {
                if headers.get("authorization").is_none_or(|value| value != "Bearer runguard-agent") {
                    return (StatusCode::UNAUTHORIZED, "who are you?").into_response();
                }
                if request["id"].is_null() { StatusCode::ACCEPTED.into_response() } else { Json(answer(&request)).into_response() }
            }),
        )
        .route("/near", any(|| async { (StatusCode::TEMPORARY_REDIRECT, [("location", "/mcp")]) }))
        .route("/far", any(move || async move { (StatusCode::TEMPORARY_REDIRECT, [("location", format!("{other}/mcp"))]) }))
        .route("/page", any(|| async { (StatusCode::OK, [("content-type", "text/html")], "<h1>hello</h1>") }));
    let host = serve(router).await;
    let with = |path: &str, value: &str| {
        let mut settings = at(&format!("{host}{path}"));
        settings.headers.insert("Authorization".to_owned(), value.to_owned());
        settings
    };

    for path in ["/mcp", "/near"] {
        let server = McpServer::connect(&with(path, "Bearer ${CARGO_PKG_NAME}")).await.unwrap();
        assert_eq!(call(&server, "srv_go", json!({})).await, ToolOutput::ok("done"));
        server.close().await;
    }
    let problem = refused(&with("/mcp", "Bearer $NO_SUCH_KEY_HERE")).await;
    assert!(problem.contains("NO_SUCH_KEY_HERE") && problem.contains("headers.Authorization"), "{problem}");
    let problem = refused(&with("/mcp", "Bearer wrong")).await;
    assert!(problem.contains("401") && problem.contains("headers") && !problem.contains("wrong"), "{problem}");
    let problem = refused(&with("/far", "Bearer $CARGO_PKG_NAME")).await;
    assert!(problem.contains("307"), "{problem}");
    assert!(seen.lock().unwrap().is_empty(), "no other host sees the key");
    let problem = refused(&with("/page", "x")).await;
    assert!(problem.contains("no MCP message"), "{problem}");
    let problem = refused(&at(&format!("http://127.0.0.1:{}/mcp", free_port()))).await;
    assert!(problem.contains("is a server running at"), "{problem}");
    let problem = refused(&at("ftp://host/mcp")).await;
    assert!(problem.contains("http://"), "{problem}");
    // TLS is set up without a default provider; nobody answers there.
    let problem = refused(&at(&format!("https://127.0.0.1:{}/mcp", free_port()))).await;
    assert!(problem.contains("could not be reached") || problem.contains("certificates"), "{problem}");
}

fn endless(content_type: &'static str, start: &'static str) -> impl IntoResponse {
    let chunks =
        futures_util::stream::iter(std::iter::once(start.as_bytes().to_vec()).chain(std::iter::repeat_with(|| vec![b'x'; 1 << 16])));
    ([("content-type", content_type)], Body::from_stream(futures_util::StreamExt::map(chunks, Ok::<_, std::io::Error>)))
}

#[tokio::test]
async fn http_answers_without_end_are_cut_off() {
    for (content_type, start) in [("application/json", "{\"jsonrpc\":\""), ("text/event-stream", "data: ")] {
        let router = Router::new().route(
            "/mcp",
            any(move |request: Request| async move {
                let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
                let Ok(message) = serde_json::from_slice::<Value>(&body) else { return StatusCode::METHOD_NOT_ALLOWED.into_response() };
                if message["method"] == "tools/call" {
                    return endless(content_type, start).into_response();
                }
                if message["id"].is_null() { StatusCode::ACCEPTED.into_response() } else { Json(answer(&message)).into_response() }
            }),
        );
        let server = McpServer::connect(&at(&format!("{}/mcp", serve(router).await))).await.unwrap();
        let output = call(&server, "srv_go", json!({})).await;
        assert!(output.is_error && output.text.contains("longer than 16 MiB"), "{content_type}: {output:?}");
    }
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_taken_up_where_it_was() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&seen);
    let router = Router::new().route(
        "/mcp",
        any(move |request: Request| async move {
            let (head, body) = request.into_parts();
            let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
            let events = |text: String| ([("content-type", "text/event-stream")], text).into_response();
            let Ok(message) = serde_json::from_slice::<Value>(&body) else {
                let place = head.headers.get("last-event-id").map(|place| place.to_str().unwrap().to_owned());
                let mut asked = asked.lock().unwrap();
                asked.push(place.clone());
                // The first attempt fails, and the next brings the answer: to the question that came third.
                return match asked.len() {
                    1 => StatusCode::BAD_GATEWAY.into_response(),
                    _ => events(format!("id: 8\ndata: {}\n\n", answer(&json!({ "id": 2, "method": "tools/call" })))),
                };
            };
            match message["method"].as_str() {
                Some("tools/call") => events("id: 7\nretry: 1\ndata:\n\ndata: {\"method\":\"notifications/progress\"}\n\n".to_owned()),
                _ if message["id"].is_null() => StatusCode::ACCEPTED.into_response(),
                _ => Json(answer(&message)).into_response(),
            }
        }),
    );
    let server = McpServer::connect(&at(&format!("{}/mcp", serve(router).await))).await.unwrap();
    assert_eq!(call(&server, "srv_go", json!({})).await, ToolOutput::ok("done"));
    assert_eq!(*seen.lock().unwrap(), [Some("7".to_owned()), Some("7".to_owned())]);
}

#[tokio::test]
async fn a_session_that_the_server_forgot_is_begun_again_and_the_model_is_told() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&seen);
    let router = Router::new().route(
        "/mcp",
        any(move |headers: HeaderMap, body: Bytes| async move {
            let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
            let Ok(message) = serde_json::from_slice::<Value>(&body) else { return StatusCode::OK.into_response() };
            let method = message["method"].as_str().unwrap().to_owned();
            let mut asked = asked.lock().unwrap();
            asked.push((method.clone(), text("mcp-session-id"), text("mcp-protocol-version")));
            if method == "tools/call" && text("mcp-session-id") == "s1" {
                return StatusCode::NOT_FOUND.into_response();
            }
            if message["id"].is_null() {
                return StatusCode::ACCEPTED.into_response();
            }
            let begun = asked.iter().filter(|(method, ..)| method == "initialize").count();
            ([("mcp-session-id", format!("s{begun}"))], Json(answer(&message))).into_response()
        }),
    );
    let server = McpServer::connect(&at(&format!("{}/mcp", serve(router).await))).await.unwrap();
    let output = call(&server, "srv_go", json!({})).await;
    assert!(!output.is_error && output.text.contains("connected to again") && output.text.ends_with("done"), "{output:?}");
    server.close().await;
    let said = |method: &str, session: &str, version: &str| (method.to_owned(), session.to_owned(), version.to_owned());
    let (begin, agreed) = ("notifications/initialized", "2025-11-25");
    assert_eq!(
        *seen.lock().unwrap(),
        [
            said("initialize", "", ""),
            said(begin, "s1", agreed),
            said("tools/list", "s1", agreed),
            said("tools/call", "s1", agreed),
            said("initialize", "", ""),
            said(begin, "s2", agreed),
            said("tools/call", "s2", agreed),
        ]
    );
}

/// A server that answers calls with 404 and `refusal`, or with events that hold `events`; how often a session was begun is counted.
fn answering(begun: &Arc<Mutex<usize>>, refusal: Option<&'static str>, events: &'static str) -> Router {
    let begun = Arc::clone(begun);
    Router::new().route(
        "/mcp",
        any(move |body: Bytes| async move {
            let Ok(message) = serde_json::from_slice::<Value>(&body) else { return StatusCode::OK.into_response() };
            let id = message["id"].to_string();
            let json = [("content-type", "application/json"), ("mcp-session-id", "s")];
            match (message["method"].as_str().unwrap(), refusal) {
                ("tools/call", Some(refusal)) => (StatusCode::NOT_FOUND, json, refusal.replace("ID", &id)).into_response(),
                ("tools/call", None) => {
                    let (head, tail) = (events.replace("ID", &id), futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
                    let body = Body::from_stream(futures_util::StreamExt::chain(futures_util::stream::iter([Ok(Bytes::from(head))]), tail));
                    ([("content-type", "text/event-stream")], body).into_response()
                }
                _ if message["id"].is_null() => StatusCode::ACCEPTED.into_response(),
                (method, _) => {
                    *begun.lock().unwrap() += usize::from(method == "initialize");
                    (json, answer(&message).to_string()).into_response()
                }
            }
        }),
    )
}

#[tokio::test]
async fn not_every_404_begins_a_session() {
    // What it says of the call itself is its answer; a 404 without words may mean the session, but no second time within a minute.
    let refused = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"there is no tool go"}}"#;
    for (refusal, sessions, part) in [(refused, 1, "there is no tool go (code -32602)"), ("not here", 2, "did not take the call")] {
        let begun = Arc::new(Mutex::new(0));
        let url = format!("{}/mcp", serve(answering(&begun, Some(refusal), "")).await);
        let server = McpServer::connect(&at(&url)).await.unwrap();
        for _ in 0..3 {
            let output = call(&server, "srv_go", json!({})).await;
            assert!(output.is_error && output.text.contains(part), "{output:?}");
        }
        assert_eq!(*begun.lock().unwrap(), sessions, "{refusal}");
    }
}

#[tokio::test]
async fn an_event_that_cannot_be_read_is_told_at_once_and_a_list_is_read() {
    for (events, is_error, part) in [
        ("data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":\n\n", true, "not the result of a tool"),
        (
            "data: [{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"},{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"listed\"}]}}]\n\n",
            false,
            "listed",
        ),
    ] {
        let begun = Arc::new(Mutex::new(0));
        let server = McpServer::connect(&at(&format!("{}/mcp", serve(answering(&begun, None, events)).await))).await.unwrap();
        let output = call(&server, "srv_go", json!({})).await;
        assert!(output.is_error == is_error && output.text.contains(part), "{output:?}");
    }
}

/// The protocol without `initialize`, as a proxy in front of a server sees it.
#[tokio::test]
async fn without_a_session_each_question_says_what_it_goes_by() {
    let router = Router::new().route(
        "/mcp",
        post(|headers: HeaderMap, Json(message): Json<Value>| async move {
            let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
            let (method, meta) = (message["method"].as_str().unwrap(), &message["params"]["_meta"]);
            if method == "initialize" {
                let refusal = json!({ "jsonrpc": "2.0", "error": { "code": -32601, "message": "Method not found" } });
                return (StatusCode::NOT_FOUND, Json(refusal)).into_response();
            }
            assert_eq!((text("mcp-method").as_str(), text("mcp-protocol-version").as_str()), (method, "2026-07-28"));
            assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
            assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({}));
            let result = match method {
                "server/discover" => json!({ "supportedVersions": ["2026-07-28"], "capabilities": {} }),
                "tools/list" => {
                    let city = json!({ "type": "string", "x-mcp-header": "City" });
                    json!({ "tools": [{ "name": "größe", "inputSchema": { "type": "object", "properties": { "city": city } } }] })
                }
                _ => {
                    let heard = format!("{} {}", text("mcp-name"), text("mcp-param-city"));
                    json!({ "content": [{ "type": "text", "text": heard }] })
                }
            };
            Json(json!({ "jsonrpc": "2.0", "id": message["id"], "result": result })).into_response()
        }),
    );
    let server = McpServer::connect(&at(&format!("{}/mcp", serve(router).await))).await.unwrap();
    let name = server.tools()[0].spec().name.clone();
    assert_eq!(call(&server, &name, json!({ "city": "Rom" })).await, ToolOutput::ok("=?base64?Z3LDtsOfZQ==?= Rom"));
}

#[test]
fn the_future_can_be_sent() {
    fn sent<F: Future + Send>(_: F) {}
    sent(McpServer::connect(&hostile("plain")));
}
