//! The link to Redis against real servers: what it promises, and what happens when they fail.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use crate::redis_server::{Certificates, Proxy, RedisCluster, RedisServer, free_port, wait_until};
use proptest::prelude::*;
use runguard_store::cluster::link::{
    About, CellName, Condition, EntryId, Link, LinkError, NodesSeen, Put, Said, Swap, SwapCell, Swapped, Token, Value,
};
use runguard_store::cluster::model::ModelLink;
use runguard_store::redis::{OpenError, RedisLink, RedisOptions};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const HOUR: u64 = 3_600_000;

fn options(url: &str) -> RedisOptions {
    RedisOptions {
        url: url.to_owned(),
        prefix: "rg".to_owned(),
        partitions: 4,
        stream_limit: 1000,
        ca_file: None,
        replicas: 0,
        timeout: Duration::from_secs(2),
    }
}

async fn open(url: &str) -> RedisLink {
    RedisLink::open(options(url)).await.unwrap()
}

/// Never the same twice.
fn token() -> Token {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) | 0x0a0d_0000_0000_0000
}

fn about(generation: u64) -> About {
    About { format: 1, partitions: 4, generation, secret: String::new() }
}

fn cell(name: &CellName, expect: Token, put: Put) -> SwapCell {
    SwapCell { name: name.clone(), expect, put }
}

fn set(token: Token, state: &[u8]) -> Put {
    Put::Set { token, state: state.to_vec(), keep_millis: HOUR }
}

fn swap(cells: Vec<SwapCell>, entry: &[u8]) -> Swap {
    Swap { partition: cells[0].name.partition(), cells, entry: entry.to_vec() }
}

async fn one(link: &impl Link, swap: Swap) -> Swapped {
    link.swap(&[swap]).await.unwrap().pop().unwrap()
}

async fn log(link: &impl Link, partition: u16) -> Vec<Vec<u8>> {
    let entries = link.entries(vec![(partition, EntryId::default())], 10_000, 0).await.unwrap();
    entries.into_iter().map(|(_, _, entry)| entry).collect()
}

/// On a connection that came by itself the database is looked at first.
async fn swap_on_any_line(link: &RedisLink, swaps: &[Swap]) -> Result<Vec<Swapped>, LinkError> {
    match link.swap(swaps).await {
        Err(error) if error.is_emptied() => {
            link.about(about(7)).await?;
            link.swap(swaps).await
        }
        answered => answered,
    }
}

/// Tries until the link is back.
async fn recovered<T, F: Future<Output = Result<T, LinkError>>>(mut call: impl FnMut() -> F) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) if Instant::now() > end => panic!("it does not recover: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Everything that a link does, wherever it leads.
async fn does_everything(link: &impl Link, stream_limit: usize) {
    assert_eq!(link.about(about(7)).await.unwrap(), about(7));
    assert_eq!(link.about(about(8)).await.unwrap(), about(7), "who comes first decides");
    let error = link.about(About { partitions: 5, ..about(9) }).await.unwrap_err();
    assert!(matches!(&error, LinkError::NotOurs(why) if why.contains("4 partitions") && why.contains("with 5")), "{error}");
    let with_secret = About { format: 2, secret: "00112233445566778899aabbccddeeff".into(), ..about(9) };
    assert_eq!(link.about(with_secret).await.unwrap(), about(7), "a database without a secret gets none");
    assert_eq!(link.partitions(), 4);

    let names: Vec<CellName> = (0..4).map(|partition| CellName::new(partition, u128::MAX - 5)).collect();
    let (first, second) = (token(), token());
    assert_eq!(link.load(names.clone()).await.unwrap(), vec![None; 4]);
    assert_eq!(link.load(vec![]).await.unwrap(), []);
    assert_eq!(link.swap(&[]).await.unwrap(), []);

    // In one call over all partitions; one of them raced.
    let mut swaps: Vec<Swap> = names.iter().map(|name| swap(vec![cell(name, 0, set(first, b"\0one\r\n"))], b"row\0")).collect();
    swaps[2].cells[0].expect = 5;
    let raced = Swapped::Raced(vec![None]);
    assert_eq!(link.swap(&swaps).await.unwrap(), [Swapped::Done, Swapped::Done, raced, Swapped::Done]);
    let there: Value = Some((first, b"\0one\r\n".to_vec()));
    assert_eq!(link.load(names.clone()).await.unwrap(), [there.clone(), there.clone(), None, there.clone()]);
    assert_eq!(one(link, swap(vec![cell(&names[0], second, set(token(), b""))], b"no")).await, Swapped::Raced(vec![there.clone()]));

    // Keep compares and changes nothing; a state may be empty; an empty entry is none.
    assert_eq!(one(link, swap(vec![cell(&names[0], first, Put::Keep)], b"kept")).await, Swapped::Done);
    let gone = token();
    assert_eq!(one(link, swap(vec![cell(&names[1], first, set(gone, b""))], b"")).await, Swapped::Done);
    assert_eq!(link.load(names[..2].to_vec()).await.unwrap(), [there, Some((gone, Vec::new()))]);
    assert_eq!(log(link, 0).await, [b"row\0".to_vec(), b"kept".to_vec()]);
    assert_eq!(log(link, 1).await, [b"row\0"]);
    assert!(log(link, 2).await.is_empty());

    // A chain within one call: each on what the one before left.
    let chain = [token(), token(), token()];
    let link_of = |expect, token, row: &[u8]| swap(vec![cell(&names[2], expect, set(token, row))], row);
    let swaps = vec![link_of(0, chain[0], b"a"), link_of(chain[0], chain[1], b"b"), link_of(chain[0], chain[2], b"late")];
    let answers = link.swap(&swaps).await.unwrap();
    assert_eq!(answers, [Swapped::Done, Swapped::Done, Swapped::Raced(vec![Some((chain[1], b"b".to_vec()))])]);
    assert_eq!(log(link, 2).await, [b"a", b"b"]);
    // Sent again, it is known to be done, also the one that was overtaken.
    assert_eq!(link.swap(&swaps).await.unwrap(), answers);
    assert_eq!(log(link, 2).await, [b"a", b"b"]);

    // All or nothing with several cells.
    let pair = [CellName::new(3, 100), CellName::new(3, 101)];
    let both = |expect: [Token; 2]| {
        swap(vec![cell(&pair[0], expect[0], set(token(), b"x")), cell(&pair[1], expect[1], set(token(), b"y"))], b"pair")
    };
    assert_eq!(one(link, both([0, 99])).await, Swapped::Raced(vec![None, None]));
    assert_eq!(link.load(pair.to_vec()).await.unwrap(), [None, None]);
    assert_eq!(one(link, both([0, 0])).await, Swapped::Done);
    assert!(matches!(one(link, both([0, 0])).await, Swapped::Raced(values) if values.iter().all(Option::is_some)));

    // The log: from any place on, with a bound, and shorter.
    let latest = link.latest().await.unwrap();
    let all: Vec<(u16, EntryId)> = (0..4).map(|partition| (partition, EntryId::default())).collect();
    let entries = link.entries(all.clone(), 100, 0).await.unwrap();
    assert_eq!(entries.iter().map(|(partition, ..)| *partition).collect::<Vec<_>>(), [0, 0, 1, 2, 2, 3, 3]);
    for (partition, last) in latest.iter().enumerate() {
        assert_eq!(entries.iter().rfind(|(of, ..)| usize::from(*of) == partition).unwrap().1, *last);
    }
    assert_eq!(link.entries(all.clone(), 1, 0).await.unwrap().len(), 4, "the count is of each partition");
    let first_of_two = entries[3].1;
    assert_eq!(link.entries(vec![(2, first_of_two)], 100, 0).await.unwrap(), [entries[4].clone()]);
    link.trim(vec![(2, first_of_two), (0, latest[0])]).await.unwrap();
    assert_eq!(log(link, 2).await, [b"b"]);
    assert!(log(link, 0).await.is_empty());
    assert_eq!(link.latest().await.unwrap()[0], EntryId::default());
    link.trim(vec![]).await.unwrap();

    // Who waits for an entry gets it when it comes, and does not hold up who writes it.
    let end: Vec<(u16, EntryId)> = (0..).zip(latest.iter().copied()).collect();
    let began = Instant::now();
    let (waited, _) = tokio::join!(link.entries(end.clone(), 10, 10_000), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        one(link, swap(vec![cell(&names[1], gone, set(token(), b""))], b"awaited")).await
    });
    assert_eq!(waited.unwrap().iter().map(|(partition, _, entry)| (*partition, &entry[..])).collect::<Vec<_>>(), [(1, &b"awaited"[..])]);
    assert!(began.elapsed() < Duration::from_secs(30));
    let latest: Vec<(u16, EntryId)> = vec![(0, latest[0])];
    assert_eq!(link.entries(latest, 10, 30).await.unwrap(), []);

    // A full stream refuses what has an entry, and only that.
    let name = CellName::new(0, 55);
    let fill: Vec<Swap> =
        (0..stream_limit).map(|number| swap(vec![cell(&CellName::new(0, 1000 + number as u128), 0, Put::Keep)], b"row")).collect();
    assert!(link.swap(&fill).await.unwrap().iter().all(|answer| *answer == Swapped::Done));
    assert_eq!(one(link, swap(vec![cell(&name, 0, set(token(), b"x"))], b"row")).await, Swapped::Full);
    assert_eq!(one(link, swap(vec![cell(&name, 6, set(token(), b"x"))], b"row")).await, Swapped::Raced(vec![None]));
    assert_eq!(link.load(vec![name.clone()]).await.unwrap(), [None]);
    assert_eq!(one(link, swap(vec![cell(&name, 0, set(token(), b"x"))], b"")).await, Swapped::Done);
    assert_eq!(one(link, swap(vec![cell(&CellName::new(1, 56), 0, set(token(), b"x"))], b"row")).await, Swapped::Done);

    // Endpoints and leases.
    for label in ["b\0pay", "a\0ship", "b\0pay"] {
        link.note_endpoint(label.to_owned()).await.unwrap();
    }
    assert_eq!(link.endpoints().await.unwrap(), ["a\0ship", "b\0pay"]);
    link.forget_endpoint("a\0ship".to_owned()).await.unwrap();
    assert_eq!(link.endpoints().await.unwrap(), ["b\0pay"]);
    assert!(link.lease("import", 1, HOUR).await.unwrap());
    assert!(link.lease("import", 1, HOUR).await.unwrap(), "prolonged");
    assert!(!link.lease("import", 2, HOUR).await.unwrap());
    assert!(link.lease("other", 2, HOUR).await.unwrap());
    assert!(!link.lease("import", 2, 0).await.unwrap(), "only its holder gives it back");
    assert!(!link.lease("import", 2, HOUR).await.unwrap());
    assert!(!link.lease("import", 1, 0).await.unwrap());
    assert!(link.lease("import", 2, HOUR).await.unwrap());

    // Erasures wait for every other node that is known.
    let none: Vec<(String, Vec<u64>)> = Vec::new();
    assert_eq!(link.erasures().await.unwrap(), none);
    for node in [7, 8, u64::MAX, 8] {
        link.is_here(node, &NodesSeen::new()).await.unwrap();
    }
    link.say_of_erasures(8, Said::Announced("one".into())).await.unwrap();
    // It has outlived a database that knew another one.
    let known: NodesSeen = link.is_here(9, &NodesSeen::from([(5, 4_000_000_000)])).await.unwrap();
    assert!(known.keys().eq(&[5, 7, 8, 9, u64::MAX]), "{known:?}");
    let waiting = || async {
        let mut erasures = link.erasures().await.unwrap();
        for (_, nodes) in &mut erasures {
            nodes.sort_unstable();
        }
        erasures
    };
    assert_eq!(waiting().await, [("one".to_owned(), vec![7, u64::MAX])], "9 came later");
    for node in [7, 7, 9] {
        link.say_of_erasures(node, Said::Confirmed("one".into())).await.unwrap();
    }
    link.say_of_erasures(7, Said::Confirmed("other".into())).await.unwrap();
    assert_eq!(waiting().await, [("one".to_owned(), vec![u64::MAX])]);
    link.say_of_erasures(u64::MAX, Said::Confirmed("one".into())).await.unwrap();
    assert_eq!(waiting().await, [("one".to_owned(), Vec::new())], "known until the one who asked has heard of it");
    link.say_of_erasures(8, Said::Forgotten("one".into())).await.unwrap();
    assert_eq!(link.erasures().await.unwrap(), none);

    assert!(link.load(vec![CellName::new(4, 0)]).await.is_err());
    let error = link.entries(vec![(4, EntryId::default())], 1, 0).await.unwrap_err();
    assert!(matches!(&error, LinkError::Refused(why) if why.contains("no partition 4")), "{error}");
    assert!(link.swap(&[swap(vec![cell(&CellName::new(9, 0), 0, Put::Keep)], b"")]).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_does_everything() {
    let server = RedisServer::start();
    let link = RedisLink::open(RedisOptions { stream_limit: 20, ..options(&server.url()) }).await.unwrap();
    assert_eq!(link.condition().await.unwrap(), Condition { without_aof: true, ..Condition::default() });
    assert_eq!(server.cli(&["CONFIG", "SET", "appendonly", "yes"]), "OK");
    assert_eq!(link.condition().await.unwrap(), Condition::default());
    does_everything(&link, 20).await;
    let (ours, here) = (link.time().await.unwrap(), std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis());
    assert!(ours.abs_diff(i64::try_from(here).unwrap()) < 5000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_does_everything() {
    let link = ModelLink::on_tokio_time(4, 20, 1_000_000);
    does_everything(&link, 20).await;
}

/// The 8-byte number in a cell, one more each time, from as many tasks: none is lost, each has its row.
async fn races(link: Arc<RedisLink>, tasks: u64, times: u64) {
    let name = CellName::new(1, 42);
    let racer = |_| {
        let (link, name) = (Arc::clone(&link), name.clone());
        tokio::spawn(async move {
            let mut seen: Value = None;
            for _ in 0..times {
                loop {
                    let (expect, count) =
                        seen.as_ref().map_or((0, 0), |(token, state)| (*token, u64::from_be_bytes(state[..].try_into().unwrap())));
                    let (token, state) = (token(), (count + 1).to_be_bytes());
                    match one(&*link, swap(vec![cell(&name, expect, set(token, &state))], &state)).await {
                        Swapped::Done => {
                            seen = Some((token, state.to_vec()));
                            break;
                        }
                        Swapped::Raced(mut values) => seen = values.pop().unwrap(),
                        Swapped::Full | Swapped::Fenced => panic!("full"),
                    }
                }
            }
        })
    };
    for task in (0..tasks).map(racer).collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let value = link.load(vec![name]).await.unwrap().pop().unwrap().unwrap();
    assert_eq!(value.1, (tasks * times).to_be_bytes());
    let rows: Vec<Vec<u8>> = (1..=tasks * times).map(|count| count.to_be_bytes().to_vec()).collect();
    assert_eq!(log(&*link, 1).await, rows, "every row once, in order");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_tasks_on_one_cell_lose_nothing() {
    let server = RedisServer::start();
    races(Arc::new(open(&server.url()).await), 8, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_sent_again_after_a_cut_is_made_once() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port);
    let link = open(&proxy.url()).await;
    link.about(about(7)).await.unwrap();
    let (name, removed) = (CellName::new(1, 1), CellName::new(1, 2));
    let first = token();
    assert_eq!(one(&link, swap(vec![cell(&removed, 0, set(first, b"x"))], b"")).await, Swapped::Done);

    let (a, b, gone) = (token(), token(), token());
    let swaps = vec![
        swap(vec![cell(&name, 0, set(a, b"1")), cell(&removed, first, set(gone, b""))], b"row 1"),
        swap(vec![cell(&name, a, set(b, b"2"))], b"row 2"),
    ];
    proxy.cut_after_request();
    let error = link.swap(&swaps).await.unwrap_err();
    assert!(matches!(error, LinkError::Away(_)), "{error}");
    assert_eq!(recovered(|| swap_on_any_line(&link, &swaps)).await, [Swapped::Done, Swapped::Done]);
    assert_eq!(log(&link, 1).await, [b"row 1", b"row 2"]);
    assert_eq!(link.load(vec![name, removed]).await.unwrap(), [Some((b, b"2".to_vec())), Some((gone, Vec::new()))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_answer_costs_one_timeout() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port);
    let link = RedisLink::open(RedisOptions { timeout: Duration::from_millis(300), ..options(&proxy.url()) }).await.unwrap();
    proxy.swallow();
    let began = Instant::now();
    assert!(matches!(link.time().await, Err(LinkError::Away(_))));
    assert!(began.elapsed() >= Duration::from_millis(300) && began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let began = Instant::now();
    for _ in 0..1000 {
        assert!(matches!(link.time().await, Err(LinkError::Away(_))));
    }
    // A thousand times the timeout would be five minutes.
    assert!(began.elapsed() < Duration::from_secs(30), "who comes later does not wait: {:?}", began.elapsed());
    proxy.pass();
    recovered(|| link.time()).await;
}

/// However long a command was under way: what its sender stopped waiting for is not done any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_arrives_after_its_sender_stopped_waiting_does_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port);
    let link = RedisLink::open(RedisOptions { timeout: Duration::from_millis(300), ..options(&proxy.url()) }).await.unwrap();
    link.about(about(7)).await.unwrap();
    // From here on it knows the server's clock.
    link.time().await.unwrap();
    let (name, first, second) = (CellName::new(1, 1), token(), token());
    assert_eq!(one(&link, swap(vec![cell(&name, 0, set(first, b"before"))], b"before")).await, Swapped::Done);

    let calls = || server.cli(&["INFO", "commandstats"]).lines().find_map(|line| Some(line.strip_prefix("cmdstat_evalsha:")?.to_owned()));
    let before = calls();
    proxy.hold();
    let error = link.swap(&[swap(vec![cell(&name, first, set(second, b"late"))], b"late")]).await.unwrap_err();
    assert!(matches!(error, LinkError::Away(_)), "{error}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(calls(), before, "it is still under way");
    proxy.pass();
    wait_until("it arrives", || calls() != before);
    let other = open(&server.url()).await;
    assert_eq!(other.load(vec![name]).await.unwrap(), [Some((first, b"before".to_vec()))]);
    assert_eq!(log(&other, 1).await, [b"before"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_is_found_again_with_its_script_gone() {
    let mut server = RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let link = open(&server.url()).await;
    link.about(about(7)).await.unwrap();
    let (name, first, second, third) = (CellName::new(0, 1), token(), token(), token());
    assert_eq!(one(&link, swap(vec![cell(&name, 0, set(first, b"a"))], b"a")).await, Swapped::Done);
    assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK");
    assert_eq!(one(&link, swap(vec![cell(&name, first, set(second, b"b"))], b"b")).await, Swapped::Done);

    server.kill();
    let error = link.time().await.unwrap_err();
    assert!(matches!(error, LinkError::Away(_)), "{error}");
    server.start_again();
    let swaps = vec![swap(vec![cell(&name, second, set(third, b"c"))], b"c")];
    assert_eq!(recovered(|| swap_on_any_line(&link, &swaps)).await, [Swapped::Done]);
    assert_eq!(recovered(|| link.entries(vec![(0, EntryId::default())], 10, 0)).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_server_is_noticed_before_anything_is_decided_on_it() {
    let mut server = RedisServer::start();
    let (one_node, other_node) = (open(&server.url()).await, open(&server.url()).await);
    for link in [&one_node, &other_node] {
        assert_eq!(link.about(about(7)).await.unwrap(), about(7));
    }
    let swaps = || vec![swap(vec![cell(&CellName::new(0, 1), 0, set(token(), b"a"))], b"a")];
    assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    let error = one_node.swap(&swaps()).await.unwrap_err();
    assert!(error.is_emptied(), "{error}");
    assert_eq!(error, LinkError::NotOurs("emptied".to_owned()));
    assert_eq!(server.cli(&["DBSIZE"]), "0");

    // Whoever asks first makes it again; the other one hears of it and must ask too.
    assert_eq!(one_node.about(about(8)).await.unwrap(), about(8));
    assert_eq!(one_node.swap(&swaps()).await.unwrap(), [Swapped::Done]);
    assert!(other_node.swap(&swaps()).await.unwrap_err().is_emptied());
    assert_eq!(other_node.about(about(9)).await.unwrap(), about(8));
    assert!(matches!(other_node.swap(&swaps()).await.unwrap()[..], [Swapped::Raced(_)]));

    server.kill();
    server.start_again();
    let end = Instant::now() + Duration::from_secs(20);
    while !one_node.swap(&swaps()).await.is_err_and(|error| error.is_emptied()) {
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_whose_place_another_had_taken_is_not_the_same_when_it_is_back() {
    let server = RedisServer::start();
    let link = open(&server.url()).await;
    assert_eq!(link.about(about(7)).await.unwrap().generation, 7);
    let key = server.cli(&["KEYS", "*about*"]);
    assert_eq!(server.cli(&["RENAME", &key, "kept"]), "OK");
    assert_eq!(link.about(about(8)).await.unwrap().generation, 8);
    // A replica that has nothing of what was written since, not even that it was emptied.
    assert_eq!(server.cli(&["RENAME", "kept", &key]), "OK");
    assert_eq!(link.about(about(9)).await.unwrap().generation, 9, "its states are of a time before");
    assert_eq!(link.about(about(10)).await.unwrap().generation, 9);

    let model = ModelLink::new(4, 10, 5000);
    assert_eq!(model.about(about(7)).await.unwrap().generation, 7);
    let replica = model.replica();
    model.empty();
    assert_eq!(model.about(about(8)).await.unwrap().generation, 8);
    model.fail_over(replica);
    assert_eq!(model.about(about(9)).await.unwrap().generation, 9);
    assert_eq!(model.about(about(10)).await.unwrap().generation, 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cells_and_leases_end_with_their_time() {
    let server = RedisServer::start();
    let link = open(&server.url()).await;
    let (name, first) = (CellName::new(2, 3), token());
    let brief = Put::Set { token: first, state: b"x".to_vec(), keep_millis: 60 };
    assert_eq!(one(&link, swap(vec![cell(&name, 0, brief.clone())], b"")).await, Swapped::Done);
    assert!(link.lease("import", 1, 60).await.unwrap());
    assert!(link.load(vec![name.clone()]).await.unwrap()[0].is_some());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(link.load(vec![name.clone()]).await.unwrap(), [None]);
    assert_eq!(one(&link, swap(vec![cell(&name, first, set(token(), b""))], b"")).await, Swapped::Raced(vec![None]));
    assert!(link.lease("import", 2, HOUR).await.unwrap());
    // Neither no time nor all time is an error.
    for keep_millis in [0, u64::MAX] {
        let name = CellName::new(2, 100 + u128::from(keep_millis));
        let put = Put::Set { token: token(), state: Vec::new(), keep_millis };
        assert_eq!(one(&link, swap(vec![cell(&name, 0, put)], b"")).await, Swapped::Done);
    }

    let model = ModelLink::new(4, 10, 5000);
    assert_eq!(one(&model, swap(vec![cell(&name, 0, brief)], b"")).await, Swapped::Done);
    assert!(model.lease("import", 1, 60).await.unwrap());
    model.set_millis(5059);
    assert!(model.load(vec![name.clone()]).await.unwrap()[0].is_some());
    assert!(!model.lease("import", 2, 60).await.unwrap());
    model.set_millis(5060);
    assert_eq!(model.load(vec![name]).await.unwrap(), [None]);
    assert!(model.cells().is_empty());
    assert!(model.lease("import", 2, 60).await.unwrap());
    assert_eq!(model.time().await.unwrap(), 5060);
    model.about(about(1)).await.unwrap();
    let other = model.another();
    other.about(about(2)).await.unwrap();
    model.empty();
    assert!(other.swap(&[]).await.unwrap_err().is_emptied());
    assert_eq!(other.about(about(2)).await.unwrap(), about(2));
    assert!(other.swap(&[]).await.is_ok());
    assert!(model.swap(&[]).await.unwrap_err().is_emptied());
}

/// What a user needs and nothing more, as the documentation gives it.
fn rights() -> Vec<&'static str> {
    let docs = include_str!("../../../docs/cluster.md");
    let line = docs.lines().find_map(|line| line.trim().strip_prefix("ACL SETUSER runguard on >PASSWORD ")).unwrap();
    std::iter::once("resetkeys").chain(line.split(' ')).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_just_the_rights_does_everything() {
    let server = RedisServer::start();
    let rights = rights();
    let user: Vec<&str> = ["ACL", "SETUSER", "guard", "on", ">p@ss:w/rd"].into_iter().chain(rights.iter().copied()).collect();
    assert_eq!(server.cli(&user), "OK");
    let url = format!("redis://guard:p%40ss%3Aw%2Frd@127.0.0.1:{}", server.port);
    let link = RedisLink::open(RedisOptions { stream_limit: 20, ..options(&url) }).await.unwrap();
    does_everything(&link, 20).await;
    drop(link);
    let used = server.cli(&["INFO", "commandstats"]);
    for right in rights.iter().filter_map(|right| right.strip_prefix('+')).filter(|right| *right != "wait") {
        assert!(used.contains(&format!("cmdstat_{right}:")), "{right} is given but not needed");
    }

    let foreign = RedisLink::open(RedisOptions { prefix: "other".to_owned(), ..options(&url) }).await.unwrap();
    let error = foreign.note_endpoint("x".to_owned()).await.unwrap_err();
    assert!(matches!(&error, LinkError::Refused(why) if why.contains("NOPERM")), "{error}");
    assert_eq!(server.cli(&["ACL", "SETUSER", "guard", "-script|load"]), "OK");
    let error = RedisLink::open(options(&url)).await.unwrap_err();
    assert!(matches!(error, OpenError::NotAllowed { .. }), "{error}");
    assert!(!error.to_string().contains("p@ss"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_at_the_start_is_said_with_the_remedy() {
    let plain = RedisServer::start();
    let guarded = RedisServer::with_password("hunter2");
    let says = async |options: RedisOptions, words: &[&str]| {
        let error = RedisLink::open(options).await.unwrap_err();
        let message = error.to_string();
        for word in words {
            assert!(message.contains(word), "{word}: {message}");
        }
        assert!(!message.contains("hunter"), "{message}");
        error
    };
    let place = format!("127.0.0.1:{}", guarded.port);
    let url = |login: &str| options(&format!("redis://{login}127.0.0.1:{}", guarded.port));
    assert!(matches!(says(url(":hunter3@"), &[&place, "Check user and password"]).await, OpenError::Password { .. }));
    assert!(matches!(says(url("someone:hunter2@"), &[&place]).await, OpenError::Password { .. }));
    assert!(matches!(says(url(""), &[&place, "does not take the login"]).await, OpenError::Password { .. }));
    assert!(RedisLink::open(url(":hunter2@")).await.is_ok());
    let nobody = free_port();
    let error = says(options(&format!("redis://:hunter2@localhost:{nobody}")), &[&format!("localhost:{nobody}"), "Is it running"]).await;
    assert!(matches!(error, OpenError::Unreachable { .. }));
    assert!(matches!(says(options("redis://a:b:c@/"), &["host is missing"]).await, OpenError::Url(_)));
    assert!(matches!(says(RedisOptions { partitions: 0, ..options(&plain.url()) }, &["1 to 4096"]).await, OpenError::Partitions { .. }));
    let missing = Some("/nowhere/ca.pem".into());
    assert!(matches!(
        says(RedisOptions { ca_file: missing, ..options(&plain.url()) }, &["/nowhere/ca.pem"]).await,
        OpenError::CaFile { .. }
    ));

    let replica = RedisServer::replica_of(&plain);
    assert!(matches!(says(options(&replica.url()), &["is a replica", "address of the primary"]).await, OpenError::Replica { .. }));
    let two = format!("redis://127.0.0.1:{},127.0.0.1:{}", plain.port, RedisServer::start().port);
    assert!(RedisLink::open(options(&two)).await.is_ok(), "one that is gone does not matter");
    let other = RedisServer::start();
    let two = format!("redis://127.0.0.1:{},127.0.0.1:{}", plain.port, other.port);
    assert!(matches!(says(options(&two), &["both say", "REPLICAOF"]).await, OpenError::TwoPrimaries { .. }));

    let alone = RedisServer::with(&["--cluster-enabled", "yes", "--cluster-port", &free_port().to_string()]);
    assert!(matches!(says(options(&alone.url()), &["redis+cluster://"]).await, OpenError::ClusterMode { .. }));
    let url = format!("redis+cluster://127.0.0.1:{}", alone.port);
    assert!(matches!(says(options(&url), &["not all slots are served"]).await, OpenError::Busy { .. }));
    let url = format!("redis+cluster://127.0.0.1:{}", plain.port);
    assert!(matches!(says(options(&url), &["not part of a Redis Cluster"]).await, OpenError::NotCluster { .. }));

    assert_eq!(other.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]), "OK");
    let link = open(&other.url()).await;
    assert_eq!(link.condition().await.unwrap().evicts.as_deref(), Some("allkeys-lru"));
    assert!(!format!("{:?} {:?}", options("redis://:hunter2@h"), link).contains("hunter"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_needs_a_certificate_that_is_trusted() {
    let certificates = Certificates::make();
    let server = RedisServer::with_tls(&certificates);
    let url = format!("rediss://localhost:{}", server.port);
    let trusting = RedisOptions { ca_file: Some(certificates.authority()), stream_limit: 20, ..options(&url) };
    does_everything(&RedisLink::open(trusting.clone()).await.unwrap(), 20).await;

    let error = RedisLink::open(options(&url)).await.unwrap_err();
    assert!(matches!(&error, OpenError::Tls { .. }), "not the system's authority: {error}");
    let error = RedisLink::open(RedisOptions { url: format!("rediss://127.0.0.1:{}", server.port), ..trusting.clone() }).await.unwrap_err();
    assert!(matches!(&error, OpenError::Tls { .. }), "not its name: {error}");
    let error = RedisLink::open(options(&format!("redis://localhost:{}", server.port))).await.unwrap_err();
    assert!(matches!(&error, OpenError::Closed { .. }) && error.to_string().contains("rediss://"), "{error}");
    let plain = RedisServer::start();
    let error = RedisLink::open(RedisOptions { url: format!("rediss://localhost:{}", plain.port), ..trusting }).await.unwrap_err();
    assert!(matches!(&error, OpenError::Unreachable { .. }) && error.to_string().contains("write redis://"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_followed_without_a_restart() {
    let mut primary = RedisServer::start();
    let replica = RedisServer::replica_of(&primary);
    let url = format!("redis://127.0.0.1:{},127.0.0.1:{}", replica.port, primary.port);
    let link = RedisLink::open(RedisOptions { replicas: 1, ..options(&url) }).await.unwrap();
    link.about(about(7)).await.unwrap();
    let (name, first, second) = (CellName::new(0, 1), token(), token());
    assert_eq!(one(&link, swap(vec![cell(&name, 0, set(first, b"a"))], b"a")).await, Swapped::Done);
    drop(link);

    let link = open(&url).await;
    link.about(about(8)).await.unwrap();
    primary.kill();
    let swaps = vec![swap(vec![cell(&name, first, set(second, b"b"))], b"b")];
    assert!(matches!(link.swap(&swaps).await, Err(LinkError::Away(_))));
    assert!(link.swap(&swaps).await.is_err());
    assert_eq!(replica.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert_eq!(recovered(|| swap_on_any_line(&link, &swaps)).await, [Swapped::Done]);
    assert_eq!(recovered(|| link.entries(vec![(0, EntryId::default())], 9, 0)).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_becomes_a_replica_is_left() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let link = open(&format!("redis://127.0.0.1:{}", old.port)).await;
    assert_eq!(old.cli(&["REPLICAOF", "127.0.0.1", &new.port.to_string()]), "OK");
    let swaps = vec![swap(vec![cell(&CellName::new(0, 1), 0, set(token(), b"a"))], b"a")];
    let error = link.swap(&swaps).await.unwrap_err();
    assert!(matches!(&error, LinkError::Refused(why) if why.contains("READONLY")), "{error}");
    let end = Instant::now() + Duration::from_secs(20);
    while !matches!(link.swap(&swaps).await, Err(LinkError::Refused(why)) if why.contains("is a replica")) {
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(old.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert_eq!(recovered(|| swap_on_any_line(&link, &swaps)).await, [Swapped::Done]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_that_its_replicas_do_not_have_is_not_known_to_be_safe() {
    let primary = RedisServer::start();
    let mut replica = RedisServer::replica_of(&primary);
    let timeout = Duration::from_millis(400);
    let link = RedisLink::open(RedisOptions { replicas: 1, timeout, ..options(&primary.url()) }).await.unwrap();
    let name = CellName::new(0, 1);
    let first = token();
    assert_eq!(one(&link, swap(vec![cell(&name, 0, set(first, b"a"))], b"a")).await, Swapped::Done);
    replica.kill();
    let swaps = vec![swap(vec![cell(&name, first, set(token(), b"b"))], b"b")];
    let error = link.swap(&swaps).await.unwrap_err();
    assert!(matches!(&error, LinkError::Away(why) if why.contains("only 0 of 1 replicas")), "{error}");
    let error = link.swap(&swaps).await.unwrap_err();
    assert!(matches!(&error, LinkError::Away(why) if why.contains("only 0 of 1 replicas")), "the repeat neither: {error}");
    // With a replica that has not followed, a fresh connection must wait for it too.
    replica.start_again();
    assert_eq!(recovered(|| swap_on_any_line(&link, &swaps)).await, [Swapped::Done]);
    assert_eq!(log(&link, 0).await, [b"a", b"b"]);
    assert_eq!(replica.cli(&["XLEN", "rg:{0}:log"]), "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_memory_refuses_and_changes_nothing() {
    let server = RedisServer::start();
    let link = open(&server.url()).await;
    let name = CellName::new(0, 1);
    let first = token();
    assert_eq!(one(&link, swap(vec![cell(&name, 0, set(first, b"a"))], b"a")).await, Swapped::Done);
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    let swaps = vec![swap(vec![cell(&name, first, set(token(), b"b"))], b"b")];
    let error = link.swap(&swaps).await.unwrap_err();
    assert!(matches!(&error, LinkError::Refused(why) if why.contains("OOM")), "{error}");
    assert_eq!(link.load(vec![name]).await.unwrap(), [Some((first, b"a".to_vec()))]);
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
    assert_eq!(link.swap(&swaps).await.unwrap(), [Swapped::Done]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_does_everything_and_its_slots_may_move() {
    let cluster = RedisCluster::start();
    let link = RedisLink::open(RedisOptions { stream_limit: 20, ..options(&cluster.url()) }).await.unwrap();
    does_everything(&link, 20).await;

    let slot = |key: &str| cluster.servers[0].cli(&["CLUSTER", "KEYSLOT", key]);
    assert_eq!(slot("rg:{3}:log"), slot("rg:{3}:c:00000000000000000000000000000064"));
    assert_eq!(slot("rg:{3}:log"), slot("rg:{3}:about"));
    let homes: Vec<usize> = (0..4).map(|partition| cluster.home(&format!("rg:{{{partition}}}:log"))).collect();
    assert!(homes.iter().any(|home| *home != homes[0]), "the partitions are spread: {homes:?}");

    for (server, is_without) in [(homes[0], true), (homes[0] + 1, true), (homes[0] + 2, false)] {
        assert_eq!(cluster.servers[server % 3].cli(&["CONFIG", "SET", "appendonly", "yes"]), "OK");
        assert_eq!(link.condition().await.unwrap().without_aof, is_without, "one of three servers is enough");
    }

    let name = CellName::new(3, 777);
    let (first, second) = (token(), token());
    assert_eq!(one(&link, swap(vec![cell(&name, 0, set(first, b"a"))], b"before")).await, Swapped::Done);
    cluster.move_slot("rg:{3}:log", (homes[3] + 1) % 3);
    assert_ne!(cluster.home("rg:{3}:log"), homes[3]);
    assert_eq!(one(&link, swap(vec![cell(&name, first, set(second, b"b"))], b"after")).await, Swapped::Done);
    assert_eq!(link.load(vec![name]).await.unwrap(), [Some((second, b"b".to_vec()))]);
    let log = log(&link, 3).await;
    assert_eq!(&log[log.len() - 2..], [b"before".to_vec(), b"after".to_vec()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_the_fence_of_one_partition_says_nothing_of_what_another_did() {
    let cluster = RedisCluster::start();
    let (link, other) = (open(&cluster.url()).await, open(&cluster.url()).await);
    for link in [&link, &other] {
        link.about(about(7)).await.unwrap();
    }
    let made = |partition: u16, number: u128| swap(vec![cell(&CellName::new(partition, number), 0, set(token(), b"a"))], b"row");
    for partition in 0..3 {
        // It has learned how the fences stand.
        while one(&link, made(partition, u128::from(token()))).await == Swapped::Fenced {}
    }
    other.fence().await.unwrap();
    assert_eq!(one(&link, made(0, 1)).await, Swapped::Fenced);
    assert_eq!(link.swap(&[made(0, 1), made(2, 1)]).await.unwrap(), [Swapped::Done, Swapped::Fenced], "each for itself");
    assert_eq!(link.swap(&[made(1, 1), made(2, 1)]).await.unwrap(), [Swapped::Fenced, Swapped::Done]);
    assert_eq!(link.swap(&[made(1, 1)]).await.unwrap(), [Swapped::Done]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_half_moved_is_asked_where_its_keys_are() {
    let cluster = RedisCluster::start();
    let link = open(&cluster.url()).await;
    let (name, first, second) = (CellName::new(2, 5), token(), token());
    assert_eq!(one(&link, swap(vec![cell(&name, 0, set(first, b"a"))], b"row 1")).await, Swapped::Done);
    let moving = cluster.begin_move("rg:{2}:log", (cluster.home("rg:{2}:log") + 1) % 3);
    moving.key(&format!("rg:{{2}}:c:{:032x}", 5));
    // The cell is at the next home, though the slot is not yet; one cell alone can be asked for there.
    assert_eq!(link.load(vec![name.clone()]).await.unwrap(), [Some((first, b"a".to_vec()))]);
    // A swap needs cell and stream in one place.
    let swaps = vec![swap(vec![cell(&name, first, set(second, b"b"))], b"row 2")];
    let error = link.swap(&swaps).await.unwrap_err();
    assert!(matches!(&error, LinkError::Away(why) if why.contains("TRYAGAIN")), "{error}");
    moving.end();
    assert_eq!(link.swap(&swaps).await.unwrap(), [Swapped::Done]);
    assert_eq!(log(&link, 2).await, [b"row 1", b"row 2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_tasks_on_one_cell_of_a_cluster_lose_nothing() {
    let cluster = RedisCluster::start();
    races(Arc::new(open(&cluster.url()).await), 8, 25).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_in_a_cluster_is_followed() {
    let mut cluster = RedisCluster::start();
    let home = cluster.home("rg:{0}:log");
    cluster.add_replica(home);
    let link = open(&cluster.url()).await;
    link.about(about(7)).await.unwrap();
    let (name, first, second) = (CellName::new(0, 1), token(), token());
    assert_eq!(one(&link, swap(vec![cell(&name, 0, set(first, b"a"))], b"a")).await, Swapped::Done);
    let offset = |server: usize, name: &str| {
        let info = cluster.servers[server].cli(&["INFO", "replication"]);
        info.lines().find_map(|line| line.strip_prefix(name).map(ToOwned::to_owned)).unwrap()
    };
    wait_until("the replica has it", || offset(home, "master_repl_offset:") == offset(3, "slave_repl_offset:"));
    cluster.servers[home].kill();
    let swaps = vec![swap(vec![cell(&name, first, set(second, b"b"))], b"b")];
    assert!(link.swap(&swaps).await.is_err());
    assert_eq!(recovered(|| swap_on_any_line(&link, &swaps)).await, [Swapped::Done]);
    assert_eq!(recovered(|| link.entries(vec![(0, EntryId::default())], 9, 0)).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_a_cluster_that_lost_its_data_makes_another_generation() {
    let mut cluster = RedisCluster::start();
    let link = open(&cluster.url()).await;
    let other_node = open(&cluster.url()).await;
    assert_eq!(link.about(about(7)).await.unwrap(), about(7));
    assert_eq!(other_node.about(about(8)).await.unwrap(), about(7));
    let lost = cluster.home("rg:{0}:log");
    let kept = (1..4).find(|partition| cluster.home(&format!("rg:{{{partition}}}:log")) != lost).unwrap();
    cluster.servers[lost].kill();
    let swaps = |partition: u16| vec![swap(vec![cell(&CellName::new(partition, 1), 0, set(token(), b"a"))], b"a")];
    let begin = Instant::now();
    assert!(matches!(link.swap(&swaps(0)).await, Err(LinkError::Away(_))));
    assert!(matches!(link.swap(&swaps(0)).await, Err(LinkError::Away(_))));
    assert!(begin.elapsed() < Duration::from_secs(10));
    cluster.servers[lost].start_again();
    cluster.wait_until_whole();
    let end = Instant::now() + Duration::from_secs(20);
    while !link.swap(&swaps(0)).await.is_err_and(|error| error.is_emptied()) {
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(recovered(|| link.about(about(7))).await, about(8), "not the same again, whatever is offered");
    assert_eq!(link.swap(&swaps(0)).await.unwrap(), [Swapped::Done]);
    assert!(recovered(|| async { Ok(other_node.swap(&swaps(kept)).await.is_err_and(|error| error.is_emptied())) }).await);
    assert_eq!(recovered(|| other_node.about(about(9))).await, about(8));
    assert_eq!(recovered(|| async { other_node.swap(&swaps(kept)).await }).await, [Swapped::Done]);
}

#[derive(Debug, Clone, Copy)]
enum Expect {
    Current,
    Nothing,
    Stale,
    /// What the swap before it in the same call puts there.
    Chained,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Keep,
    Set,
}

#[derive(Debug, Clone)]
enum Step {
    Call(Vec<(u16, Vec<(u8, Expect, Action)>, Vec<u8>)>),
    Again,
    Trim(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let expect = prop_oneof![5 => Just(Expect::Current), 2 => Just(Expect::Nothing), 1 => Just(Expect::Stale), 4 => Just(Expect::Chained)];
    let action = prop_oneof![1 => Just(Action::Keep), 4 => Just(Action::Set)];
    let entry = prop_oneof![1 => Just(Vec::new()), 3 => prop::collection::vec(any::<u8>(), 1..4)];
    let cells = prop::collection::vec((0_u8..3, expect, action), 1..4);
    let call = prop::collection::vec((0_u16..2, cells, entry), 1..5);
    let step = prop_oneof![8 => call.prop_map(Step::Call), 2 => Just(Step::Again), 1 => (0_u16..2).prop_map(Step::Trim)];
    prop::collection::vec(step, 1..12)
}

/// Turns a step's calls into swaps, with tokens that make sense where the model stands.
fn written(call: &[(u16, Vec<(u8, Expect, Action)>, Vec<u8>)], model: &ModelLink, old: &mut HashMap<CellName, Token>) -> Vec<Swap> {
    let mut here: HashMap<CellName, Token> = model.cells().into_iter().map(|(name, token, _)| (name, token)).collect();
    let before = here.clone();
    let mut swaps = Vec::new();
    for (partition, cells, entry) in call {
        let mut seen: Vec<u8> = Vec::new();
        let mut made = Vec::new();
        for (number, expect, action) in cells {
            if seen.contains(number) {
                continue;
            }
            seen.push(*number);
            let name = CellName::new(*partition, u128::from(*number));
            let expect = match expect {
                Expect::Current => before.get(&name).copied().unwrap_or(0),
                Expect::Nothing => 0,
                Expect::Stale => old.get(&name).copied().unwrap_or(3),
                Expect::Chained => here.get(&name).copied().unwrap_or(0),
            };
            let put = match action {
                Action::Keep => Put::Keep,
                Action::Set => {
                    let token = token();
                    old.extend(here.insert(name.clone(), token).map(|token| (name.clone(), token)));
                    set(token, &token.to_be_bytes()[6..])
                }
            };
            made.push(cell(&name, expect, put));
        }
        swaps.push(Swap { partition: *partition, cells: made, entry: entry.clone() });
    }
    swaps
}

/// Redis and the model, driven by the same steps, answer the same and hold the same at the end.
fn same_as_the_model(url: &str, cases: u32) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let count = AtomicU64::new(0);
    let races = AtomicU64::new(0);
    let mut runner =
        proptest::test_runner::TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() });
    let run = runner.run(&steps(), |steps| {
        let prefix = format!("case{}", count.fetch_add(1, Ordering::Relaxed));
        runtime.block_on(async {
            let link = RedisLink::open(RedisOptions { prefix, partitions: 2, stream_limit: 6, ..options(url) }).await.unwrap();
            let model = ModelLink::new(2, 6, 1_000_000);
            let mine = About { partitions: 2, ..about(1) };
            prop_assert_eq!(link.about(mine.clone()).await.unwrap(), model.about(mine).await.unwrap());
            let (mut last, mut old) = (Vec::new(), HashMap::new());
            for step in &steps {
                match step {
                    Step::Call(call) => last = written(call, &model, &mut old),
                    Step::Again => {}
                    Step::Trim(partition) => {
                        let upto = link.latest().await.unwrap()[usize::from(*partition)];
                        link.trim(vec![(*partition, upto)]).await.unwrap();
                        let upto = model.latest().await.unwrap()[usize::from(*partition)];
                        model.trim(vec![(*partition, upto)]).await.unwrap();
                        continue;
                    }
                }
                let (real, modelled) = (link.swap(&last).await.unwrap(), model.swap(&last).await.unwrap());
                races.fetch_add(real.iter().filter(|answer| matches!(answer, Swapped::Raced(_))).count() as u64, Ordering::Relaxed);
                prop_assert_eq!(real, modelled);
            }
            let names: Vec<CellName> = (0..2).flat_map(|partition| (0..3).map(move |number| CellName::new(partition, number))).collect();
            prop_assert_eq!(link.load(names.clone()).await.unwrap(), model.load(names).await.unwrap());
            for partition in 0..2 {
                prop_assert_eq!(log(&link, partition).await, log(&model, partition).await);
            }
            Ok(())
        })
    });
    run.unwrap();
    assert!(races.load(Ordering::Relaxed) > u64::from(cases), "the steps must race");
}

#[test]
fn redis_does_as_the_model_does() {
    let server = RedisServer::start();
    same_as_the_model(&server.url(), 300);
}

#[test]
fn a_cluster_does_as_the_model_does() {
    let cluster = RedisCluster::start();
    same_as_the_model(&cluster.url(), 60);
}

/// How many swaps a second one server makes in calls of 32: `cargo test --release -- --ignored --nocapture speed`.
#[test]
#[ignore = "measures"]
fn speed_of_the_script() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let link =
            Arc::new(RedisLink::open(RedisOptions { partitions: 16, stream_limit: 10_000_000, ..options(&server.url()) }).await.unwrap());
        link.about(About { partitions: 16, ..about(1) }).await.unwrap();
        for (state_bytes, entry_bytes) in [(100, 600), (300, 600)] {
            let began = Instant::now();
            let tasks: Vec<_> = (0..8_u64)
                .map(|task| {
                    let link = Arc::clone(&link);
                    tokio::spawn(async move {
                        for call in 0..500_u64 {
                            let swaps = (0..32_u64).map(|number| {
                                let id = task * 1_000_000 + call * 32 + number;
                                let name = CellName::new((id % 16) as u16, u128::from(id) << 32 | state_bytes as u128);
                                swap(vec![cell(&name, 0, set(token(), &vec![7; state_bytes]))], &vec![9; entry_bytes])
                            });
                            let answers = link.swap(&swaps.collect::<Vec<_>>()).await.unwrap();
                            assert!(answers.iter().all(|answer| *answer == Swapped::Done));
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            let took = began.elapsed();
            let busy = server.cli(&["INFO", "commandstats"]);
            let busy = busy.lines().find(|line| line.contains("evalsha")).unwrap_or_default().to_owned();
            println!("{state_bytes} + {entry_bytes} bytes: {:.0} swaps/s end to end; {busy}", 128_000.0 / took.as_secs_f64());
            server.cli(&["CONFIG", "RESETSTAT"]);
        }
    });
    wait_until("it is up", || server.cli(&["PING"]) == "PONG");
}
