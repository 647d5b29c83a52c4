//! Tables of text for terminals. Columns are as wide as the terminal shows their cells (Unicode Standard Annex 11).

use std::fmt;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Between two columns.
const GAP: &str = "  ";
/// No column gets narrower than this while another is wider.
const NARROWEST: usize = 6;
/// What stands for the part of a cell that was cut.
const CUT: char = '…';

/// Rows of cells under titles.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Column {
    title: String,
    is_flush_right: bool,
}

#[derive(Clone, Debug)]
enum Row {
    Cells(Vec<String>),
    /// Text across all columns, which makes none of them wider.
    Line(String),
}

impl Table {
    /// A table without rows. A title that ends in `>` is that of a column which is flush right.
    pub fn new<'a>(titles: impl IntoIterator<Item = &'a str>) -> Table {
        let column = |title: &str| Column {
            title: title.trim_end_matches('>').to_owned(),
            is_flush_right: title.ends_with('>'),
        };
        Table { columns: titles.into_iter().map(column).collect(), rows: Vec::new() }
    }

    /// Appends a row. Cells that it lacks are empty; it has no more than there are columns.
    pub fn row(&mut self, mut cells: Vec<String>) {
        cells.resize(self.columns.len(), String::new());
        self.rows.push(Row::Cells(cells));
    }

    /// Appends a line of text across all columns.
    pub fn line(&mut self, text: String) {
        self.rows.push(Row::Line(text));
    }

    /// The table in at most `most` columns of a terminal: the widest columns of the table are cut until it fits.
    pub fn fit(&self, most: usize) -> String {
        let mut widths = self.widths();
        let gaps = GAP.width() * widths.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > most {
            match widths.iter_mut().filter(|width| **width > NARROWEST).max() {
                Some(widest) => *widest -= 1,
                None => break,
            }
        }
        self.lay_out(&widths)
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|column| column.title.width()).collect();
        for row in &self.rows {
            let Row::Cells(cells) = row else { continue };
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.width());
            }
        }
        widths
    }

    fn lay_out(&self, widths: &[usize]) -> String {
        let titles: Vec<String> = self.columns.iter().map(|column| column.title.clone()).collect();
        let mut out = self.cells(&titles, widths);
        for row in &self.rows {
            out.push_str(&match row {
                Row::Cells(cells) => self.cells(cells, widths),
                Row::Line(text) => format!("{text}\n"),
            });
        }
        out
    }

    fn cells(&self, cells: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for (index, ((cell, width), column)) in cells.iter().zip(widths).zip(&self.columns).enumerate() {
            let cell = cut(cell, *width);
            let padding = " ".repeat(width - cell.width());
            let gap = if index > 0 { GAP } else { "" };
            let parts = if column.is_flush_right { [gap, &padding, &cell] } else { [gap, &cell, &padding] };
            line.extend(parts);
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }
}

impl fmt::Display for Table {
    /// As wide as its cells.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lay_out(&self.widths()))
    }
}

/// `text` in at most `width` columns of a terminal; [`CUT`] is at the end of what was cut.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let mut kept = String::new();
    for character in text.chars() {
        let wide = character.width().unwrap_or(0);
        if wide > left {
            break;
        }
        left -= wide;
        kept.push(character);
    }
    kept.push(CUT);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[[&str; 3]]) -> Table {
        let mut table = Table::new(["NAME", "COUNT>", "WHY"]);
        rows.iter().for_each(|row| table.row(row.map(str::to_owned).to_vec()));
        table
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_no_line_ends_in_spaces() {
        let mut table = table(&[["a", "7", "x"], ["longer", "1234567", ""]]);
        table.line("    across all of the columns, and wider".to_owned());
        let lines = [
            "NAME      COUNT  WHY",
            "a             7  x",
            "longer  1234567",
            "    across all of the columns, and wider",
        ];
        assert_eq!(table.to_string(), lines.map(|line| format!("{line}\n")).concat());
    }

    #[test]
    fn cells_count_as_the_columns_that_a_terminal_shows_them_in() {
        // Two columns each, and an accent that takes none.
        let shown = table(&[["日本", "1", "-"], ["e\u{301}", "2", "-"]]).to_string();
        assert_eq!(shown, "NAME  COUNT  WHY\n日本      1  -\ne\u{301}         2  -\n");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("日本語", 6), "日本語");
    }

    #[test]
    fn the_widest_columns_are_cut_until_the_table_fits() {
        let table = table(&[["a-name-of-20-columns", "1", "a reason of 21 columns"]]);
        for most in 30..60 {
            let text = table.fit(most);
            assert!(text.lines().all(|line| line.width() <= most), "{most}: {text}");
        }
        assert!(table.fit(30).contains(CUT) && !table.fit(60).contains(CUT));
        // Nothing is cut to less than can be read.
        assert!(table.fit(3).lines().all(|line| line.width() <= 2 * NARROWEST + "COUNT".len() + 2 * GAP.len()));
    }
}
