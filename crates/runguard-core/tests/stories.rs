//! The stories of `sdk/stories.json`, played on the core itself; Python and TypeScript play the same.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on should stop; the stories are a file")]

#[path = "stories/player.rs"]
mod player;

#[test]
fn every_story_in_this_process() {
    player::play_all("process", |_, _| panic!("nobody is asked"));
}
