//! The positions of the fields in the packed structs of `rtl/`, read from the source of the simulated card.

use std::collections::HashMap;

const SOURCE: &str =
    concat!(include_str!("../../../../rtl/registers_pkg.sv"), include_str!("../../../../rtl/viaduct_pkg.sv"));

/// The fields of a packed struct.
pub struct Layout {
    /// Lowest bit and width of each field, by name.
    fields: HashMap<&'static str, (usize, usize)>,
    /// Number of bits of the struct.
    pub width: usize,
}

impl Layout {
    /// Returns the layout of the struct of this name.
    ///
    /// # Panics
    /// If there is no such struct, or one of its types isn't understood.
    pub fn of(name: &str) -> Self {
        let (before, _) = SOURCE.split_once(&format!("}} {name};")).expect("a struct of this name");
        let (_, body) = before.rsplit_once("typedef struct packed {").expect("its start");
        let mut fields = HashMap::new();
        let mut width = 0;
        // The last field is the lowest.
        for line in body.lines().rev() {
            let declaration = line.split("//").next().unwrap_or_default().trim().trim_end_matches(';');
            let Some((kind, field)) = declaration.rsplit_once(' ') else { continue };
            let bits = width_of(kind.trim());
            fields.insert(field, (width, bits));
            width += bits;
        }
        Self { fields, width }
    }

    /// Returns the lowest bit and the width of a field.
    ///
    /// # Panics
    /// If there is no such field.
    pub fn field(&self, name: &str) -> (usize, usize) {
        *self.fields.get(name).unwrap_or_else(|| panic!("no field {name}"))
    }
}

/// Returns the bits of a type: `logic`, `logic [7:0]`, or the name of a struct or an enumeration.
fn width_of(kind: &str) -> usize {
    if let Some(range) = kind.strip_prefix("logic") {
        let range = range.trim().trim_matches(['[', ']']);
        return match range.split_once(':') {
            Some(("BeatWidth-1", "0")) => 512,
            Some((high, "0")) => high.parse::<usize>().expect("a number") + 1,
            _ => 1,
        };
    }
    let declaration = SOURCE.lines().find_map(|line| {
        line.trim()
            .strip_prefix("typedef ")?
            .strip_suffix(&format!(" {kind};"))
            .filter(|rest| !rest.contains('{'))
    });
    if let Some(declaration) = declaration {
        return width_of(declaration);
    }
    let (before, _) = SOURCE.split_once(&format!("}} {kind};")).unwrap_or_else(|| panic!("no type {kind}"));
    let (_, enumeration) = before.rsplit_once("typedef enum ").expect("an enumeration");
    width_of(enumeration.split_once(" {").expect("its values").0)
}
