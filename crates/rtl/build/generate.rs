//! A top's ports, read from the header that Verilator wrote, and the C++ and Rust code that is generated from them.

use std::fmt::Write;

pub struct Port {
    name: String,
    input: bool,
    /// Number of bits.
    width: usize,
}

/// Parses the ports that a generated class declares (`VL_IN8(&clk,0,0);`). Sorts them by name, so that the ports of
/// variants are in the same order. Fails with a line that it doesn't understand.
pub fn ports(header: &str) -> Result<Vec<Port>, String> {
    let lines = header.lines().map(str::trim);
    let ports = lines.filter(|line| line.starts_with("VL_IN") || line.starts_with("VL_OUT")).map(port);
    let mut ports = ports.collect::<Result<Vec<_>, _>>()?;
    ports.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(ports)
}

fn port(line: &str) -> Result<Port, String> {
    let parse = || {
        let (kind, rest) = line.split_once("(&")?;
        let mut fields = rest.strip_suffix(");")?.split(',');
        let name = fields.next()?;
        let high: usize = fields.next()?.parse().ok()?;
        let low: usize = fields.next()?.parse().ok()?;
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let input = kind.starts_with("VL_IN") && !kind.starts_with("VL_INOUT");
        (plain && (input || kind.starts_with("VL_OUT"))).then(|| Port {
            name: name.to_owned(),
            input,
            width: high.checked_sub(low).map(|above| above + 1).unwrap_or_default(),
        })
    };
    parse().filter(|port| port.width > 0).ok_or_else(|| line.to_owned())
}

/// Generates the C++ function that makes a model and tells the addresses of its ports.
pub fn shim(top: &str, ports: &[Port]) -> String {
    let mut text = format!(
        "#include \"V{top}.h\"\n#include \"runtime.h\"\n\n\
         extern \"C\" rtl::Model* rtl_new_{top}(rtl::Port* ports) noexcept {{\n    \
         auto* model = new rtl::ModelOf<V{top}>();\n"
    );
    for (index, Port { name, width, .. }) in ports.iter().enumerate() {
        let _ = writeln!(text, "    ports[{index}] = {{&model->top.{name}, {width}}};");
    }
    text + "    return model;\n}\n"
}

/// Generates the struct of a top. Ports that are wider in a variant have the variant's width.
pub fn rust(top: &str, ports: &[Port], variants: &[(&str, &[Port])]) -> String {
    let name = camel_case(top);
    let mut text = format!("\n/// The module `{top}`.\npub struct {name}(Model);\n\nimpl {name} {{\n");
    text += &constructor("new", top, ports);
    for (variant, ports) in variants {
        text += &constructor(variant, variant, ports);
    }
    for (index, port) in ports.iter().enumerate() {
        let width = variants.iter().filter_map(|(_, ports)| Some(ports.get(index)?.width));
        text += &accessors(index, port, width.fold(port.width, usize::max));
    }
    text += &format!(
        r#"}}

impl Default for {name} {{
    fn default() -> Self {{
        Self::new()
    }}
}}

impl std::ops::Deref for {name} {{
    type Target = Model;
    fn deref(&self) -> &Model {{
        &self.0
    }}
}}

impl std::ops::DerefMut for {name} {{
    fn deref_mut(&mut self) -> &mut Model {{
        &mut self.0
    }}
}}
"#
    );
    text
}

fn constructor(function: &str, top: &str, ports: &[Port]) -> String {
    let index_of = |name| ports.iter().position(|port| port.name == name);
    format!(
        r#"    /// A model of its own, after the initial blocks.
    pub fn {function}() -> Self {{
        unsafe extern "C" {{
            fn rtl_new_{top}(ports: *mut model::Port) -> *mut model::Raw;
        }}
        static TOP: model::Top = model::Top {{
            name: "{top}",
            create: rtl_new_{top},
            ports: {count},
            clk: {clk:?},
            rst: {rst:?},
        }};
        Self(Model::new(&TOP))
    }}
"#,
        count = ports.len(),
        clk = index_of("clk"),
        rst = index_of("rst"),
    )
}

fn accessors(index: usize, Port { name, input, .. }: &Port, width: usize) -> String {
    let (kind, get, set) = match width {
        1 => ("bool", " != 0", "u64::from(value)"),
        2..=8 => ("u8", " as u8", "u64::from(value)"),
        9..=16 => ("u16", " as u16", "u64::from(value)"),
        17..=32 => ("u32", " as u32", "u64::from(value)"),
        33..=64 => ("u64", "", "value"),
        _ => return wide_accessors(index, name, *input, width),
    };
    let get = format!(
        "    /// Port `{name}`, {width} bits.\n    pub fn {name}(&self) -> {kind} {{\n        self.0.get({index}){get}\n    }}\n"
    );
    let set = format!(
        "    /// Sets the input `{name}`, {width} bits; panics if the value has more.\n    \
         pub fn set_{name}(&mut self, value: {kind}) {{\n        self.0.set({index}, {set});\n    }}\n"
    );
    if *input { get + &set } else { get }
}

fn wide_accessors(index: usize, name: &str, input: bool, width: usize) -> String {
    let get = format!(
        "    /// Port `{name}`, {width} bits.\n    pub fn {name}(&self) -> Bits<'_> {{\n        self.0.bits({index})\n    }}\n"
    );
    let set = format!(
        "    /// The input `{name}`, {width} bits, to be set.\n    \
         pub fn {name}_mut(&mut self) -> BitsMut<'_> {{\n        self.0.bits_mut({index})\n    }}\n"
    );
    if input { get + &set } else { get }
}

fn camel_case(name: &str) -> String {
    name.split('_').filter_map(|word| Some(word.get(..1)?.to_uppercase() + &word[1..])).collect()
}
