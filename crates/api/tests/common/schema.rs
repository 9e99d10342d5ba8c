//! The schema of host.toml: messages of the protocol files, with what the comments of their fields say.

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};
use std::collections::{BTreeMap, HashMap};
use std::io::{Error, Result};
use std::path::Path;
use std::process::Command;

// Numbers of fields in descriptor.proto, of which paths of comments consist.
pub const MESSAGES: i32 = 4;
pub const ENUMS: i32 = 5;
pub const SERVICES: i32 = 6;
pub const MEMBERS: i32 = 2;

/// Words with which lines of a comment begin that say more about a key. `viaduct.proto` explains them.
const TAGS: [&str; 5] = ["default", "cli", "position", "code", "arg"];

/// A comment: its text, and what it says by tags.
#[derive(Clone, Default)]
pub struct Comment {
    pub text: String,
    pub tags: BTreeMap<&'static str, String>,
}

impl Comment {
    /// Reads a comment. An unknown tag is an error.
    pub fn read(comment: &str) -> Result<Self> {
        let mut read = Self::default();
        let mut tag = None;
        for line in comment.lines().map(str::trim) {
            let mut words = line;
            if let Some(rest) = line.strip_prefix('@') {
                let (name, of_tag) = rest.split_once(' ').unwrap_or((rest, ""));
                tag = TAGS.into_iter().find(|known| *known == name);
                words = of_tag;
                let Some(tag) = tag else { return Err(Error::other(format!("unknown tag: {line}"))) };
                read.tags.entry(tag).or_default();
            }
            let place = tag.map_or(&mut read.text, |tag| read.tags.entry(tag).or_default());
            if !place.is_empty() {
                place.push(' ');
            }
            place.push_str(words);
        }
        read.text.truncate(read.text.trim_end().len());
        Ok(read)
    }
}

/// A key of a table.
pub struct Key {
    pub field: FieldDescriptorProto,
    pub comment: Comment,
}

impl Key {
    pub fn name(&self) -> &str {
        self.field.name()
    }

    pub fn tag(&self, tag: &str) -> Option<&str> {
        self.comment.tags.get(tag).map(String::as_str)
    }

    pub fn is_repeated(&self) -> bool {
        self.field.label() == Label::Repeated
    }

    pub fn is_required(&self) -> bool {
        !self.is_repeated() && !self.field.proto3_optional()
    }

    pub fn is_bool(&self) -> bool {
        self.field.r#type() == Type::Bool
    }

    /// Returns the name of the message that the key takes.
    pub fn message(&self) -> Option<&str> {
        let is_message = self.field.r#type() == Type::Message;
        is_message.then(|| self.field.type_name().rsplit('.').next().unwrap_or_default())
    }

    /// Returns whether it stands for the keys of its message.
    pub fn is_spread(&self) -> bool {
        self.comment.text.is_empty()
    }
}

/// The protocol files.
pub struct Schema {
    pub api: FileDescriptorProto,
    /// Keys of the messages of both files, by the message's name.
    own: BTreeMap<String, Vec<Key>>,
}

impl Schema {
    /// Reads the protocol files by protoc.
    pub fn read() -> Result<Self> {
        let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
        let scratch = tempfile::tempdir()?;
        let out = scratch.path().join("descriptors");
        let status = Command::new("protoc")
            .arg("-I")
            .arg(&proto)
            .arg("-o")
            .arg(&out)
            .args(["--include_source_info", "viaduct.proto", "file.proto"])
            .status();
        if !status.map_err(|e| Error::other(format!("protoc: {e}; apt install protobuf-compiler")))?.success()
        {
            return Err(Error::other("protoc failed"));
        }
        let mut set = FileDescriptorSet::decode(&*std::fs::read(out)?).map_err(Error::other)?;
        let (file, api) = (set.file.pop(), set.file.pop());
        let [file, api] = [file, api].map(Option::unwrap_or_default);
        let mut own = keys(&api, |name| is_of_objects(&api, name))?;
        own.append(&mut keys(&file, |_| true)?);
        Ok(Self { api, own })
    }

    /// Returns the tables of objects: name of the table, name of the message.
    pub fn kinds(&self) -> Vec<(&str, &str)> {
        let object = self.api.message_type.iter().find(|message| message.name() == "Object");
        let fields = object.iter().flat_map(|message| &message.field);
        fields.map(|f| (f.name(), f.type_name().rsplit('.').next().unwrap_or_default())).collect()
    }

    /// Returns the keys of a message, without those that it has from others.
    pub fn own_keys(&self, message: &str) -> Option<&[Key]> {
        self.own.get(message).map(Vec::as_slice)
    }

    /// Returns all keys of a message.
    pub fn keys(&self, message: &str) -> Vec<&Key> {
        let mut keys = Vec::new();
        for key in self.own.get(message).into_iter().flatten() {
            match key.message() {
                Some(other) if key.is_spread() => keys.extend(self.keys(other)),
                _ => keys.push(key),
            }
        }
        keys
    }

    /// Returns the messages that are tables of host.toml.
    pub fn messages(&self) -> impl Iterator<Item = &str> {
        self.own.keys().map(String::as_str)
    }
}

/// Returns whether a message of the API is an object or a part of one.
fn is_of_objects(api: &FileDescriptorProto, name: &str) -> bool {
    let holds = |holder: &DescriptorProto| {
        let holder_name = holder.name();
        let has = holder.field.iter().any(|field| field.type_name().rsplit('.').next() == Some(name));
        has && (holder_name == "Object" || is_of_objects(api, holder_name))
    };
    api.message_type.iter().filter(|message| message.name() != name).any(holds)
}

/// Returns the keys of those messages of a file that are wanted.
fn keys(file: &FileDescriptorProto, wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<String, Vec<Key>>> {
    let comments = comments(file)?;
    let mut found = BTreeMap::new();
    for (i, message) in (0..).zip(&file.message_type).filter(|(_, message)| wanted(message.name())) {
        let key = |(j, field): (i32, &FieldDescriptorProto)| Key {
            field: field.clone(),
            comment: comments.get(&vec![MESSAGES, i, MEMBERS, j]).cloned().unwrap_or_default(),
        };
        found.insert(message.name().to_owned(), (0..).zip(&message.field).map(key).collect());
    }
    Ok(found)
}

/// Returns comments by the path of the item that each is about.
pub fn comments(file: &FileDescriptorProto) -> Result<HashMap<Vec<i32>, Comment>> {
    let locations = file.source_code_info.iter().flat_map(|info| &info.location);
    let commented = locations.filter_map(|place| Some((&place.path, place.leading_comments.as_ref()?)));
    commented.map(|(path, comment)| Ok((path.clone(), Comment::read(comment)?))).collect()
}
