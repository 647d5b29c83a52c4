//! A change of single loaded entries, in the file that these are kept in: its record is there before the data plane is
//! asked, so that a full disk refuses the change, and counts when the change is made.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use softdpu_api::{EntryChanges, NetworkEntries};
use softdpu_link::kept;

/// A record of a change that is being made.
#[derive(Debug)]
pub(super) struct Record {
    file: File,
    /// What it is called in the state directory.
    pub(super) name: String,
    /// It was made for this record.
    pub(super) is_new: bool,
    folder: PathBuf,
    /// The file's length before.
    before: u64,
    at: u64,
    bytes: Vec<u8>,
}

impl Record {
    /// Appends a record of `changes` to the file `name` in `folder`, or to a new one.
    pub(super) fn append(folder: &Path, name: String, is_new: bool, changes: &EntryChanges) -> io::Result<Record> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).mode(0o600).create_new(is_new);
        if is_new {
            fs::create_dir_all(folder)?;
        }
        let file = options.open(folder.join(&name))?;
        let before = file.metadata()?.len();
        let mut last = [b'\n'];
        if before > 0 {
            file.read_exact_at(&mut last, before - 1)?;
        }
        // The last line that was loaded may have no end.
        let gap: &[u8] = if last == [b'\n'] { b"" } else { b"\n" };
        let bytes = kept::record(changes);
        let at = before + gap.len() as u64;
        let record = Record { file, name, is_new, folder: folder.to_owned(), before, at, bytes };
        let written = record.file.write_all_at(&[gap, &record.bytes].concat(), before);
        match written {
            Ok(()) => Ok(record),
            Err(error) => {
                record.undo();
                Err(error)
            }
        }
    }

    /// The change is made, and its network has `counts` entries. The record's length.
    pub(super) fn made(&self, counts: NetworkEntries) -> io::Result<u64> {
        self.file.write_all_at(&kept::header(&self.bytes, counts), self.at)?;
        Ok(self.bytes.len() as u64)
    }

    /// The change is not made: everything is as it was.
    pub(super) fn undo(&self) {
        let undone =
            if self.is_new { fs::remove_file(self.folder.join(&self.name)) } else { self.file.set_len(self.before) };
        if let Err(error) = undone {
            tracing::error!(%error, name = self.name, "the record of a change that was not made cannot be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use softdpu_api::{EntryEdit, EntryOp};
    use softdpu_link::kept::Kept;

    use super::*;

    #[test]
    fn a_record_counts_when_its_change_is_made_and_leaves_nothing_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let text = "route,acme,10.0.0.0/8,192.0.2.2";
        fs::write(folder.path().join("loaded-1.csv"), text).unwrap();
        let edit = EntryEdit::route(EntryOp::Delete, "10.0.0.0/8".parse().unwrap());
        let changes = EntryChanges { network: "acme".to_owned(), changes: vec![edit] };
        let append = |name: &str, is_new| Record::append(folder.path(), name.to_owned(), is_new, &changes);
        let read = || fs::read_to_string(folder.path().join("loaded-1.csv")).unwrap();
        append("loaded-1.csv", false).unwrap().undo();
        assert_eq!(read(), text);
        let record = append("loaded-1.csv", false).unwrap();
        assert!(Kept::read(&record.file).unwrap().counts.is_empty());
        record.made(NetworkEntries { endpoints: 3, routes: 0 }).unwrap();
        assert_eq!(Kept::read(&record.file).unwrap().counts["acme"].endpoints, 3);
        assert!(read().starts_with(&format!("{text}\nchange ")));
        append("loaded-2.csv", true).unwrap().undo();
        append("loaded-2.csv", false).unwrap_err();
    }
}
