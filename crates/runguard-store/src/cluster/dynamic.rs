//! A link whose kind is not part of everyone's type: the store is the same over a real database and over a simulated one.

use crate::cluster::link::{About, CellName, Condition, EntryId, Link, LinkError, NodesSeen, Said, Swap, Swapped, Value};
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

pub(crate) type LinkFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LinkError>> + Send + 'a>>;

pub(crate) trait DynamicLink: Send + Sync + Debug {
    fn swap<'a>(&'a self, swaps: &'a [Swap]) -> LinkFuture<'a, Vec<Swapped>>;
    fn swap_under<'a>(&'a self, swaps: &'a [Swap], fences: Option<u64>) -> LinkFuture<'a, Vec<Swapped>>;
    fn fences_met(&self) -> u64;
    fn load(&self, names: Vec<CellName>) -> LinkFuture<'_, Vec<Value>>;
    fn time(&self) -> LinkFuture<'_, i64>;
    fn entries(&self, after: Vec<(u16, EntryId)>, count: usize, wait_millis: u64) -> LinkFuture<'_, Vec<(u16, EntryId, Vec<u8>)>>;
    fn latest(&self) -> LinkFuture<'_, Vec<EntryId>>;
    fn trim(&self, upto: Vec<(u16, EntryId)>) -> LinkFuture<'_, ()>;
    fn has_read(&self, generation: u64, positions: &[(u16, EntryId)]);
    fn server_run(&self) -> u64;
    fn fence(&self) -> LinkFuture<'_, ()>;
    fn is_older(&self) -> LinkFuture<'_, bool>;
    fn about(&self, mine: About) -> LinkFuture<'_, About>;
    fn condition(&self) -> LinkFuture<'_, Condition>;
    fn note_endpoint(&self, label: String) -> LinkFuture<'_, ()>;
    fn endpoints(&self) -> LinkFuture<'_, Vec<String>>;
    fn forget_endpoint(&self, label: String) -> LinkFuture<'_, ()>;
    fn lease<'a>(&'a self, name: &'a str, holder: u64, millis: u64) -> LinkFuture<'a, bool>;
    fn is_here<'a>(&'a self, node: u64, known: &'a NodesSeen) -> LinkFuture<'a, NodesSeen>;
    fn say_of_erasures(&self, node: u64, said: Said) -> LinkFuture<'_, ()>;
    fn erasures(&self) -> LinkFuture<'_, Vec<(String, Vec<u64>)>>;
    fn partitions(&self) -> u16;
}

impl<L: Link> DynamicLink for L {
    fn swap<'a>(&'a self, swaps: &'a [Swap]) -> LinkFuture<'a, Vec<Swapped>> {
        Box::pin(Link::swap(self, swaps))
    }

    fn swap_under<'a>(&'a self, swaps: &'a [Swap], fences: Option<u64>) -> LinkFuture<'a, Vec<Swapped>> {
        Box::pin(Link::swap_under(self, swaps, fences))
    }

    fn fences_met(&self) -> u64 {
        Link::fences_met(self)
    }

    fn load(&self, names: Vec<CellName>) -> LinkFuture<'_, Vec<Value>> {
        Box::pin(Link::load(self, names))
    }

    fn time(&self) -> LinkFuture<'_, i64> {
        Box::pin(Link::time(self))
    }

    fn entries(&self, after: Vec<(u16, EntryId)>, count: usize, wait_millis: u64) -> LinkFuture<'_, Vec<(u16, EntryId, Vec<u8>)>> {
        Box::pin(Link::entries(self, after, count, wait_millis))
    }

    fn latest(&self) -> LinkFuture<'_, Vec<EntryId>> {
        Box::pin(Link::latest(self))
    }

    fn trim(&self, upto: Vec<(u16, EntryId)>) -> LinkFuture<'_, ()> {
        Box::pin(Link::trim(self, upto))
    }

    fn has_read(&self, generation: u64, positions: &[(u16, EntryId)]) {
        Link::has_read(self, generation, positions);
    }

    fn server_run(&self) -> u64 {
        Link::server_run(self)
    }

    fn fence(&self) -> LinkFuture<'_, ()> {
        Box::pin(Link::fence(self))
    }

    fn is_older(&self) -> LinkFuture<'_, bool> {
        Box::pin(Link::is_older(self))
    }

    fn about(&self, mine: About) -> LinkFuture<'_, About> {
        Box::pin(Link::about(self, mine))
    }

    fn condition(&self) -> LinkFuture<'_, Condition> {
        Box::pin(Link::condition(self))
    }

    fn note_endpoint(&self, label: String) -> LinkFuture<'_, ()> {
        Box::pin(Link::note_endpoint(self, label))
    }

    fn endpoints(&self) -> LinkFuture<'_, Vec<String>> {
        Box::pin(Link::endpoints(self))
    }

    fn forget_endpoint(&self, label: String) -> LinkFuture<'_, ()> {
        Box::pin(Link::forget_endpoint(self, label))
    }

    fn lease<'a>(&'a self, name: &'a str, holder: u64, millis: u64) -> LinkFuture<'a, bool> {
        Box::pin(Link::lease(self, name, holder, millis))
    }

    fn is_here<'a>(&'a self, node: u64, known: &'a NodesSeen) -> LinkFuture<'a, NodesSeen> {
        Box::pin(Link::is_here(self, node, known))
    }

    fn say_of_erasures(&self, node: u64, said: Said) -> LinkFuture<'_, ()> {
        Box::pin(Link::say_of_erasures(self, node, said))
    }

    fn erasures(&self) -> LinkFuture<'_, Vec<(String, Vec<u64>)>> {
        Box::pin(Link::erasures(self))
    }

    fn partitions(&self) -> u16 {
        Link::partitions(self)
    }
}
