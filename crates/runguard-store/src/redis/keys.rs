//! The names of what is kept in Redis. What is between braces decides on which server of a Redis Cluster it lies.

use crate::cluster::link::CellName;

pub(super) struct Keys {
    pub(super) prefix: String,
}

impl Keys {
    pub(super) fn cell(&self, states: &str, name: &CellName) -> String {
        format!("{}:{{{}}}:c{states}:{:032x}", self.prefix, name.partition(), name.hash())
    }

    pub(super) fn log(&self, partition: u16) -> String {
        format!("{}:{{{partition}}}:log", self.prefix)
    }

    /// In Redis Cluster every partition carries the generation too: a server that lost its data is one of several.
    pub(super) fn mark(&self, partition: u16) -> String {
        format!("{}:{{{partition}}}:about", self.prefix)
    }

    pub(super) fn wrote(&self, partition: Option<u16>, writer: u64) -> String {
        let home = partition.map_or_else(|| "meta".to_owned(), |partition| partition.to_string());
        format!("{}:{{{home}}}:wrote:{writer}", self.prefix)
    }

    pub(super) fn about(&self) -> String {
        format!("{}:{{meta}}:about", self.prefix)
    }

    pub(super) fn endpoints(&self) -> String {
        format!("{}:{{meta}}:endpoints", self.prefix)
    }

    pub(super) fn lease(&self, name: &str) -> String {
        format!("{}:{{meta}}:lease:{name}", self.prefix)
    }

    pub(super) fn nodes(&self) -> String {
        format!("{}:{{meta}}:nodes", self.prefix)
    }

    pub(super) fn erasures(&self) -> String {
        format!("{}:{{meta}}:erasing", self.prefix)
    }
}
