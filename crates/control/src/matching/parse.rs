//! Text to filter. The grammar is that of pcap-filter(7), as far as it makes sense here; `&`, `|` and `!` are `and`,
//! `or` and `not`, and `and` and `or` bind alike, from left to right.

use config::Protocol;
use executor::{Filter, Property, Side};
use ipnet::IpNet;
use model::FlowState;
use std::iter::Peekable;
use std::net::IpAddr;
use std::vec::IntoIter;

/// Most words of an expression. This also bounds how deep it can nest.
const MOST_WORDS: usize = 256;

/// The allowed words, for messages.
const WORDS: &str = "use an address, a prefix, a protocol (tcp, udp, icmp, icmp6, sctp, arp, ip, ip6), host, net, \
     port, src or dst, joined by and, or, not, as in: host 10.1.1.1 and tcp port 80; `viaduct capture --help` and \
     `viaduct flow --help` list all words";

/// The kind of value last named, which following bare values share: `tcp port 80 or 443` is `tcp port 80 or
/// tcp port 443`.
enum Kind {
    Net,
    Port,
}

struct Parser<'t> {
    words: Peekable<IntoIter<&'t str>>,
    /// The protocol, side and kind last named.
    last: Option<(Option<Property>, Side, Kind)>,
}

type Parsed = Result<Filter, String>;

/// Parses the filter that a text describes; an empty text matches everything.
pub(super) fn filter(text: &str) -> Parsed {
    let words = words(text);
    if words.is_empty() {
        return Ok(Filter::default());
    }
    if words.len() > MOST_WORDS {
        return Err(format!("more than {MOST_WORDS} words; {WORDS}"));
    }
    let mut parser = Parser { words: words.into_iter().peekable(), last: None };
    let filter = parser.joined()?;
    match parser.words.next() {
        Some(word) => Err(not_understood(word)),
        None => Ok(filter),
    }
}

/// Splits a text into words. Each of `( ) & | !` is a word, and a doubled one is the same as a single one.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for part in text.split_whitespace() {
        let mut rest = part;
        while let Some(at) = rest.find(['(', ')', '&', '|', '!']) {
            words.extend(Some(&rest[..at]).filter(|word| !word.is_empty()));
            let sign = &rest[at..=at];
            let doubled = matches!(sign, "&" | "|") && rest[at + 1..].starts_with(sign);
            words.push(sign);
            rest = &rest[at + 1 + usize::from(doubled)..];
        }
        words.extend(Some(rest).filter(|word| !word.is_empty()));
    }
    words
}

fn not_understood(word: &str) -> String {
    format!("\"{word}\" is not understood here; {WORDS}")
}

impl<'t> Parser<'t> {
    fn next(&mut self) -> Result<&'t str, String> {
        self.words.next().ok_or_else(|| format!("it ends too early; {WORDS}"))
    }

    fn value<T>(&mut self, read: impl FnOnce(&str) -> Option<T>) -> Result<T, String> {
        let word = self.next()?;
        read(word).ok_or_else(|| not_understood(word))
    }

    fn joined(&mut self) -> Parsed {
        let mut left = self.single()?;
        loop {
            let is_and = match self.words.peek() {
                Some(&("and" | "&")) => true,
                Some(&("or" | "|")) => false,
                _ => return Ok(left),
            };
            self.words.next();
            let right = self.single()?;
            left = match (is_and, left) {
                (true, Filter::All(mut all)) => {
                    all.push(right);
                    Filter::All(all)
                }
                (true, left) => Filter::All(vec![left, right]),
                (false, Filter::Either(mut some)) => {
                    some.push(right);
                    Filter::Either(some)
                }
                (false, left) => Filter::Either(vec![left, right]),
            };
        }
    }

    fn single(&mut self) -> Parsed {
        let word = self.next()?;
        Ok(match word {
            "not" | "!" => Filter::Not(Box::new(self.single()?)),
            "(" => {
                let inside = self.joined()?;
                self.value(|word| (word == ")").then_some(()))?;
                inside
            }
            "dropped" => Filter::Is(Property::Dropped),
            "inbound" => Filter::Is(Property::Inbound),
            "outbound" => Filter::Is(Property::Outbound),
            "new" => Filter::Is(Property::State(FlowState::New)),
            "established" => Filter::Is(Property::State(FlowState::Established)),
            "closing" => Filter::Is(Property::State(FlowState::Closing)),
            "closed" => Filter::Is(Property::State(FlowState::Closed)),
            "network" => Filter::Is(Property::Network(self.next()?.to_owned())),
            "ether" => self.ether()?,
            "proto" => Filter::Is(Property::Protocol(self.value(protocol)?)),
            "src" | "dst" | "host" | "net" | "port" | "portrange" => self.qualified(None, word)?,
            _ => self.protocol_or_value(word)?,
        })
    }

    /// Parses `ether [src|dst] [host] MAC`.
    fn ether(&mut self) -> Parsed {
        let side = match self.words.next_if(|word| matches!(*word, "src" | "dst")) {
            Some("src") => Side::Source,
            Some(_) => Side::Destination,
            None => Side::Any,
        };
        self.words.next_if_eq(&"host");
        Ok(Filter::Is(Property::Mac(side, self.value(|word| word.parse().ok())?)))
    }

    /// Parses `[src|dst|src or dst] [host|net|port|portrange] VALUE` of a protocol or any.
    fn qualified(&mut self, protocol: Option<Property>, first: &str) -> Parsed {
        let (side, mut kind) = match first {
            "src" if self.words.next_if_eq(&"or").is_some() => {
                self.value(|word| (word == "dst").then_some(()))?;
                (Side::Any, None)
            }
            "src" => (Side::Source, None),
            "dst" => (Side::Destination, None),
            _ => (Side::Any, Some(first)),
        };
        kind = kind
            .or_else(|| self.words.next_if(|word| matches!(*word, "host" | "net" | "port" | "portrange")));
        let word = self.next()?;
        let kind = if matches!(kind, Some("port" | "portrange")) { Kind::Port } else { Kind::Net };
        self.last = Some((protocol, side, kind));
        self.of_last(word).ok_or_else(|| match self.last {
            Some((_, _, Kind::Port)) => format!("\"{word}\" is not a port, as in: port 80, portrange 80-443"),
            _ => format!("\"{word}\" is not an address or prefix, as in: host 10.1.1.1, net 10.1.1.0/24"),
        })
    }

    /// Parses a bare value of the kind that was last named.
    fn of_last(&self, word: &str) -> Option<Filter> {
        let (protocol, side, kind) = self.last.as_ref()?;
        let value = match kind {
            Kind::Net => Property::Net(*side, prefix(word)?),
            Kind::Port => {
                let (first, last) = word.split_once('-').unwrap_or((word, word));
                let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
                Property::Ports(*side, (first <= last).then_some(first..=last)?)
            }
        };
        Some(both(protocol.clone(), value))
    }

    /// Parses a protocol with what it qualifies (`tcp port 80`), or a bare value.
    fn protocol_or_value(&mut self, word: &str) -> Parsed {
        let named = match word {
            "ip" => Some(Property::Ip4),
            "ip6" => Some(Property::Ip6),
            "arp" => Some(Property::Arp),
            _ if word.starts_with(|first: char| first.is_ascii_digit()) => None,
            _ => protocol(word).map(Property::Protocol),
        };
        if let Some(named) = named {
            let of = |word: &&str| matches!(*word, "src" | "dst" | "host" | "net" | "port" | "portrange");
            return match self.words.next_if(of) {
                Some(first) => self.qualified(Some(named), first),
                None if self.words.next_if_eq(&"proto").is_some() => {
                    Ok(both(Some(named), Property::Protocol(self.value(protocol)?)))
                }
                None => Ok(Filter::Is(named)),
            };
        }
        let net = || prefix(word).map(|net| Filter::Is(Property::Net(Side::Any, net)));
        let number = || protocol(word).map(|protocol| Filter::Is(Property::Protocol(protocol)));
        self.of_last(word).or_else(net).or_else(number).ok_or_else(|| not_understood(word))
    }
}

/// Makes a filter for a property and, if named, the protocol.
fn both(protocol: Option<Property>, property: Property) -> Filter {
    match protocol {
        Some(protocol) => Filter::All(vec![Filter::Is(protocol), Filter::Is(property)]),
        None => Filter::Is(property),
    }
}

fn protocol(word: &str) -> Option<u8> {
    word.parse::<Protocol>().ok().map(|protocol| protocol.0)
}

fn prefix(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}
