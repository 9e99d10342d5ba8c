//! Long texts in pieces: the TOML parser takes half as long for all pieces as for the whole, whose tokens fill the
//! memory.

/// Least bytes of a piece, but for the last.
pub(crate) const LEAST: usize = 8 << 10;
/// Least pieces that two threads share.
pub(crate) const MANY: usize = 128;
/// Most keys of a text that is read in pieces. One that has more has unknown ones.
const MOST_KEYS: usize = 32;

/// Cuts a text before lines that begin with `[[kind]]`. If that is within a string or an array, the piece before is
/// wrong.
pub(crate) fn cut(text: &str, least: usize) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        let ends = |at: &usize| begins_entry(&text.as_bytes()[*at..]);
        let Some(end) = (least..text.len()).find(ends) else { return Some(text) };
        let (piece, others) = text.split_at(end + 1);
        rest = Some(others);
        Some(piece)
    })
}

/// Returns whether a line ends here, and the next one begins with `[[kind]]`.
fn begins_entry(text: &[u8]) -> bool {
    let Some(header) = text.strip_prefix(b"\n[[") else { return false };
    let kind = header.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    header[kind..].starts_with(b"]]")
}

/// Keys of a text, and whether headers `[[key]]` made them.
#[derive(Debug, Default)]
pub(crate) struct Keys(pub(crate) Vec<(String, bool)>);

impl Keys {
    /// Adds the keys of another piece. Returns `None` if the whole text may mean something else: only entries can be in
    /// several pieces.
    pub(crate) fn add(&mut self, others: Self) -> Option<()> {
        for (key, is_entry) in others.0 {
            match self.0.iter().find(|(known, _)| *known == key) {
                None if self.0.len() == MOST_KEYS => return None,
                None => self.0.push((key, is_entry)),
                Some((_, was_entry)) if *was_entry && is_entry => {}
                Some(_) => return None,
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::{MANY, cut};
    use crate::Parts;

    /// Lines of files, good and bad ones. Between two of them may be a cut, or a construct that goes on.
    const LINES: [&str; 26] = [
        "[host]\nname = \"a\"\n",
        "[bgp]\nas = 65000\n",
        "[[bgp.peer]]\naddress = \"192.0.2.9\"\nas = 65000\n",
        "include = [\"jobs/*.toml\"]\n",
        "[[network]]\nname = \"blue\"\nvrf = 1\n",
        "[[guest]]\nname = \"vm1\"\nnetwork = \"blue\"\nkind = \"vhost\"\n",
        "[guest.shape]\nin = { mbps = 50 }\n",
        "[guest]\nname = \"vm2\"\n",
        "[[route]]\nnetwork = \"blue\"\nprefix = \"10.9.0.0/16\"\nto = \"drop\"\n",
        "[[route]]\r\nnetwork = \"blue\" # [[route]]\r\nprefix = \"10.8.0.0/16\"\r\nto = { via = \"10.1.1.1\" }\r\n",
        "[[route]] # a comment\nnetwork = \"blue\"\nprefix = \"10.7.0.0/16\"\nto.guest = \"vm1\"\n",
        " [[ route ]]\nnetwork = \"blue\"\nprefix = \"10.6.0.0/16\"\nto = \"drop\"\n",
        "route = [{ network = \"blue\", prefix = \"10.5.0.0/16\", to = \"drop\" }]\n",
        "route = []\n",
        "network = []\n",
        "[[route]]\n",
        "[[rout]]\n",
        "[[route.to]]\nvia = \"10.1.1.1\"\n",
        "to = [\n",
        "]\n",
        "user_data = \"\"\"\n",
        "\"\"\"\n",
        "user_data = \'\'\'\n",
        "\'\'\'\n",
        "# a comment\n\n",
        "to = \"drop\"\n",
    ];

    fn shown(Parts { host, bgp, include, objects, unread, is_toml, problems, keys: _ }: &Parts) -> String {
        format!("{:?}", (host, bgp, include, objects, unread, is_toml, problems))
    }

    #[test]
    fn pieces_mean_what_the_whole_does() {
        bolero::check!().with_type::<(Vec<u8>, u8)>().for_each(|(lines, least)| {
            let line = |number: &u8| LINES[usize::from(*number) % LINES.len()];
            let text: String = lines.iter().map(line).collect();
            let least = usize::from(*least) % 64;
            assert_eq!(cut(&text, least).collect::<String>(), text);
            let whole = Parts::of_piece(&text, 0);
            if let Some(parts) = Parts::in_pieces(&text, least) {
                assert_eq!(shown(&parts), shown(&whole), "{text}");
            }
        });
    }

    #[test]
    fn a_good_file_is_read_in_pieces() {
        // Two threads share them.
        let routes = LINES[8].repeat(MANY);
        let text = [LINES[0], LINES[1], LINES[2], LINES[4], LINES[5], LINES[6], &routes, LINES[9]].concat();
        assert_eq!(cut(&text, 1).count(), MANY + 4);
        let whole = Parts::of_piece(&text, 0);
        assert_eq!(whole.problems, []);
        let parts = Parts::in_pieces(&text, 1).unwrap();
        assert_eq!(shown(&parts), shown(&whole));
        assert_eq!(parts.objects.last().unwrap().place.line("to"), Some(text.lines().count()));
        // A table that is there twice, a value behind a cut, a wrong value, an entry beside a value.
        for wrong in [
            [LINES[0], &text].concat(),
            [&text, LINES[18], LINES[15]].concat(),
            text.replace("\"blue\"", "7"),
        ] {
            assert!(Parts::in_pieces(&wrong, 1).is_none(), "{wrong}");
        }
        assert!(Parts::in_pieces(&[LINES[12], LINES[8], LINES[8]].concat(), 1).is_none());
    }
}
