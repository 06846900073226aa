//! A plot of points in a terminal: eight dots a character, as braille has them.

/// Characters across and down.
const WIDTH: usize = 64;
const HEIGHT: usize = 14;
/// Dots of one character, across and down.
const ACROSS: usize = 2;
const DOWN: usize = 4;
/// Bits of a braille character, by column and then by row.
const BITS: [[u8; DOWN]; ACROSS] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];

/// What is drawn. Both axes begin at nothing.
pub(super) struct Plot<'a> {
    pub(super) points: &'a [(f64, f64)],
    pub(super) most: (f64, f64),
    /// Drawn as a line downwards.
    pub(super) limit: f64,
    /// Drawn over everything, the last on top.
    pub(super) marks: &'a [(char, (f64, f64))],
}

impl Plot<'_> {
    /// Where a value falls among so many places; one that is too large falls in none.
    fn place(value: f64, most: f64, places: usize) -> Option<usize> {
        (value >= 0.0 && value <= most && most > 0.0).then(|| ((value / most * places as f64) as usize).min(places - 1))
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut dots = [[0_u8; WIDTH]; HEIGHT];
        for (x, y) in self.points {
            let across = Self::place(*x, self.most.0, WIDTH * ACROSS);
            let up = Self::place(*y, self.most.1, HEIGHT * DOWN);
            if let (Some(across), Some(up)) = (across, up) {
                let down = HEIGHT * DOWN - 1 - up;
                dots[down / DOWN][across / ACROSS] |= BITS[across % ACROSS][down % DOWN];
            }
        }
        let mut shown: Vec<Vec<char>> = dots
            .iter()
            .map(|row| {
                row.iter().map(|bits| if *bits == 0 { ' ' } else { char::from_u32(0x2800 + u32::from(*bits)).unwrap_or('·') }).collect()
            })
            .collect();
        if let Some(column) = Self::place(self.limit, self.most.0, WIDTH) {
            for row in &mut shown {
                if row[column] == ' ' {
                    row[column] = '┊';
                }
            }
        }
        for (mark, (x, y)) in self.marks {
            if let (Some(column), Some(up)) = (Self::place(*x, self.most.0, WIDTH), Self::place(*y, self.most.1, HEIGHT)) {
                shown[HEIGHT - 1 - up][column] = *mark;
            }
        }
        let label = |share: f64| format!("{:>6.1} %", 100.0 * share);
        let mut lines: Vec<String> = shown
            .into_iter()
            .enumerate()
            .map(|(row, letters)| {
                let label = if row == 0 { label(self.most.1) } else { String::new() };
                format!("{label:>8} │{}", letters.into_iter().collect::<String>().trim_end())
            })
            .collect();
        lines.push(format!("{:>8} └{}", label(0.0), "─".repeat(WIDTH)));
        let right = format!("{:.2} %", 100.0 * self.most.0);
        lines.push(format!("{:10}0 %{right:>width$}", "", width = WIDTH - 3));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_fall_where_they_belong() {
        let plot = Plot { points: &[(0.0, 0.0), (1.0, 1.0), (5.0, 0.5)], most: (1.0, 1.0), limit: 0.5, marks: &[('◆', (0.25, 0.5))] };
        let lines = plot.lines();
        assert_eq!(lines.len(), HEIGHT + 2);
        let cell = |row: usize, column: usize| lines[row].chars().nth(10 + column).unwrap_or(' ');
        assert_eq!((cell(0, WIDTH - 1), cell(HEIGHT - 1, 0)), ('⠈', '⡀'), "the highest at the top right, the lowest at the bottom left");
        assert_eq!((cell(3, WIDTH / 2), cell(6, WIDTH / 4)), ('┊', '◆'));
        assert!(lines[0].starts_with(" 100.0 %") && lines[HEIGHT + 1].trim_end().ends_with("100.00 %"));
    }

    #[test]
    fn nothing_to_draw_is_no_reason_to_fail() {
        let lines = Plot { points: &[], most: (0.0, 0.0), limit: 0.0, marks: &[] }.lines();
        assert!(lines.iter().take(HEIGHT).all(|line| line.trim_end().ends_with('│')));
    }
}
