//! Names said once: a state that repeats a few names keeps each of them one time and refers to it by number.

use serde::{Deserialize, Serialize};

/// One text and where each name ends in it: reading a state back costs two allocations, however many names there are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Names {
    text: String,
    ends: Vec<u32>,
}

impl Names {
    pub(crate) fn index(&self, name: &str) -> Option<u16> {
        self.iter().find(|(_, known)| *known == name).map(|(index, _)| index)
    }

    pub(crate) fn index_or_add(&mut self, name: &str) -> u16 {
        self.index(name).unwrap_or_else(|| {
            self.text.push_str(name);
            self.ends.push(self.text.len() as u32);
            (self.ends.len() - 1) as u16
        })
    }

    /// Empty for a number that a damaged state made up.
    pub(crate) fn get(&self, index: u16) -> &str {
        let index = usize::from(index);
        let start = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(index).and_then(|end| self.text.get(start as usize..*end as usize)).unwrap_or_default()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &str)> {
        (0..self.ends.len() as u16).map(|index| (index, self.get(index)))
    }

    /// Drops the names nobody refers to any more and renumbers the rest, so that there are never more names than uses.
    pub(crate) fn keep_used<'a>(&mut self, uses: impl Iterator<Item = &'a mut u16>) {
        let old = std::mem::take(self);
        for index in uses {
            *index = self.index_or_add(old.get(*index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_names_go_and_the_rest_is_renumbered() {
        let mut names = Names::default();
        let mut uses = ["a", "b", "c", "b"].map(|name| names.index_or_add(name));
        names.keep_used(uses[1..].iter_mut());
        assert_eq!(uses[1..].iter().map(|index| names.get(*index)).collect::<Vec<_>>(), ["b", "c", "b"]);
        assert_eq!(names.index("a"), None);
        assert_eq!(names.get(99), "");
    }
}
