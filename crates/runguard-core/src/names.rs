//! Names said once: a state that repeats a few names keeps each of them one time and refers to it by number.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names(Vec<String>);

impl Names {
    pub fn index(&self, name: &str) -> Option<u16> {
        self.0.iter().position(|known| known == name).map(|position| position as u16)
    }

    pub fn index_or_add(&mut self, name: &str) -> u16 {
        self.index(name).unwrap_or_else(|| {
            self.0.push(name.to_owned());
            (self.0.len() - 1) as u16
        })
    }

    /// Empty for a number that a damaged state made up.
    pub fn get(&self, index: u16) -> &str {
        self.0.get(usize::from(index)).map_or("", String::as_str)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u16, &str)> {
        self.0.iter().enumerate().map(|(index, name)| (index as u16, name.as_str()))
    }

    /// Drops the names nobody refers to any more and renumbers the rest, so that there are never more names than uses.
    pub fn keep_used<'a>(&mut self, uses: impl Iterator<Item = &'a mut u16>) {
        let old = std::mem::take(&mut self.0);
        let mut moved: Vec<Option<u16>> = vec![None; old.len()];
        for index in uses {
            let Some(place) = moved.get_mut(usize::from(*index)) else { continue };
            *index = *place.get_or_insert_with(|| {
                self.0.push(old[usize::from(*index)].clone());
                (self.0.len() - 1) as u16
            });
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
