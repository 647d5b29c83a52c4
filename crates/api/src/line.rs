//! Bytes as they arrive, lines as they are complete.

/// Collects bytes and gives whole lines. Holds no more than one longest line and what was pushed last.
#[derive(Debug)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    /// Bytes before this one hold no newline: they need not be looked at again.
    searched: usize,
    longest: usize,
}

/// A peer sent more than the longest line without a newline. There is no way back into step: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the line is longer than {longest} bytes")]
pub struct LineTooLong {
    /// The longest line there may be.
    pub longest: usize,
}

impl LineBuffer {
    /// A buffer for lines of up to `longest` bytes without their newline.
    pub fn new(longest: usize) -> LineBuffer {
        LineBuffer { bytes: Vec::new(), searched: 0, longest }
    }

    /// Takes what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// What is behind the lines that were given.
    pub fn rest(&self) -> &[u8] {
        &self.bytes
    }

    /// The same, for good.
    pub fn into_rest(self) -> Vec<u8> {
        self.bytes
    }

    /// The next whole line without its newline, if there is one. Call until it gives `None` before reading more.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, LineTooLong> {
        let newline = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let length = newline.map_or(self.bytes.len(), |at| self.searched + at);
        if length > self.longest {
            return Err(LineTooLong { longest: self.longest });
        }
        if newline.is_none() {
            self.searched = length;
            return Ok(None);
        }
        let rest = self.bytes.split_off(length + 1);
        let mut line = std::mem::replace(&mut self.bytes, rest);
        line.pop();
        self.searched = 0;
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_however_they_arrive() {
        let mut buffer = LineBuffer::new(5);
        let mut lines = Vec::new();
        for byte in b"one\ntwo\n\nthree\nrest" {
            buffer.push(&[*byte]);
            while let Some(line) = buffer.next_line().unwrap() {
                lines.push(String::from_utf8(line).unwrap());
            }
        }
        assert_eq!(lines, ["one", "two", "", "three"]);
        buffer.push(b"\none\ntwo\n");
        assert_eq!(buffer.next_line(), Ok(Some(b"rest".to_vec())));
        assert_eq!(buffer.next_line(), Ok(Some(b"one".to_vec())));
    }

    #[test]
    fn a_line_that_never_ends_is_an_error_before_it_fills_the_memory() {
        let mut buffer = LineBuffer::new(4);
        buffer.push(b"1234");
        assert_eq!(buffer.next_line(), Ok(None));
        buffer.push(b"5");
        assert_eq!(buffer.next_line(), Err(LineTooLong { longest: 4 }));
    }
}
