//! Generation of docs/api-reference.md from the protocol file.

use super::schema::{Comment, ENUMS, MEMBERS, MESSAGES, SERVICES, comments};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto, ServiceDescriptorProto};
use std::collections::HashMap;
use std::fmt::Write;
use std::io::Result;

const HEAD: &str = "\
# The API, message by message

Made of [viaduct.proto](../crates/api/proto/viaduct.proto) by `cargo run -p api --example generate`. [api.md](api.md)
says how to use it.
";

/// Returns the page, in Markdown.
pub fn reference(file: &FileDescriptorProto) -> Result<String> {
    let page = Page { comments: comments(file)? };
    let mut text = HEAD.to_owned();
    for (i, service) in (0..).zip(&file.service) {
        page.service(&mut text, &[SERVICES, i], service);
    }
    text += "\n## Messages\n";
    for (i, message) in (0..).zip(&file.message_type) {
        page.message(&mut text, &[MESSAGES, i], message);
    }
    text += "\n## Enumerations\n";
    for (i, one) in (0..).zip(&file.enum_type) {
        let path = [ENUMS, i];
        let _ = write!(text, "\n### {}\n\n{}", one.name(), page.paragraph(&path));
        let _ = writeln!(text, "| value | number | |\n|---|---|---|");
        for (j, value) in (0..).zip(&one.value) {
            let note = page.comment(&[&path[..], &[MEMBERS, j]].concat());
            let _ = writeln!(text, "| `{}` | {} | {note} |", value.name(), value.number());
        }
    }
    Ok(text)
}

struct Page {
    comments: HashMap<Vec<i32>, Comment>,
}

impl Page {
    fn comment(&self, path: &[i32]) -> String {
        self.comments.get(path).map_or_else(String::new, |comment| comment.text.replace('|', "\\|"))
    }

    /// Returns what an absent field means, if the comment says so.
    fn default_of(&self, path: &[i32]) -> String {
        let default = self.comments.get(path).and_then(|comment| comment.tags.get("default"));
        default.map_or_else(String::new, |default| format!(" Default: {}.", default.replace('|', "\\|")))
    }

    fn paragraph(&self, path: &[i32]) -> String {
        match &*self.comment(path) {
            "" => String::new(),
            comment => format!("{comment}\n\n"),
        }
    }

    fn service(&self, text: &mut String, path: &[i32], service: &ServiceDescriptorProto) {
        let _ = write!(text, "\n## Service {}\n\n{}", service.name(), self.paragraph(path));
        let _ = writeln!(text, "| method | request | reply | |\n|---|---|---|---|");
        for (i, method) in (0..).zip(&service.method) {
            let stream = |is| if is { "stream of " } else { "" };
            let (asked, told) = (stream(method.client_streaming()), stream(method.server_streaming()));
            let note = self.comment(&[path, &[MEMBERS, i]].concat());
            let (input, output) = (link(method.input_type()), link(method.output_type()));
            let _ = writeln!(text, "| `{}` | {asked}{input} | {told}{output} | {note} |", method.name());
        }
    }

    fn message(&self, text: &mut String, path: &[i32], message: &DescriptorProto) {
        let _ = write!(text, "\n### {}\n\n{}", message.name(), self.paragraph(path));
        if message.field.is_empty() {
            let _ = writeln!(text, "It has no fields.");
            return;
        }
        let _ = writeln!(text, "| field | type | number | |\n|---|---|---|---|");
        for (i, field) in (0..).zip(&message.field) {
            let note = self.comment(&[path, &[MEMBERS, i]].concat());
            let of = match field.oneof_index {
                Some(index) if !field.proto3_optional() => {
                    format!("one of `{}`. ", message.oneof_decl[index as usize].name())
                }
                _ => String::new(),
            };
            let (name, number) = (field.name(), field.number());
            let note = note + &self.default_of(&[path, &[MEMBERS, i]].concat());
            let _ = writeln!(text, "| `{name}` | {} | {number} | {of}{note} |", kind_in(message, field));
        }
    }
}

/// Returns the type of a message's field in the words of the protocol file. A map is a list of entries, whose
/// type lies inside the message.
fn kind_in(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let name = field.type_name().rsplit('.').next();
    match message.nested_type.iter().find(|entry| entry.name.as_deref() == name).map(|entry| &*entry.field) {
        Some([key, value]) => format!("map of {} to {}", kind(key), kind(value)),
        _ => kind(field),
    }
}

/// Returns a field's type in the words of the protocol file.
fn kind(field: &FieldDescriptorProto) -> String {
    let name = match field.r#type() {
        Type::Message | Type::Enum => link(field.type_name()),
        other => other.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    match field.label() {
        Label::Repeated => format!("repeated {name}"),
        _ if field.proto3_optional() => format!("optional {name}"),
        _ => name,
    }
}

/// Returns a message's name as a link to its heading.
fn link(full: &str) -> String {
    let name = full.rsplit('.').next().unwrap_or(full);
    format!("[{name}](#{})", name.to_lowercase())
}
