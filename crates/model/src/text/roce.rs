//! RoCEv2 packets to text and back: everything after the UDP header.

use super::TextError;
use super::encode::Words;
use packet::roce::{self, Aeth, Atomic, Bth, Datagram, Deth, Opcode, Operation, Reth, Service, Syndrome};
use std::fmt::Write;

const SERVICES: [(Service, &str); 3] = [(Service::Rc, "rc"), (Service::Uc, "uc"), (Service::Ud, "ud")];
/// Default partition key.
const DEFAULT_PARTITION: u16 = 0xffff;
/// Most bytes of headers, padding and ICRC.
const OVERHEAD: usize = 64;

/// Returns the text of a packet's layer, and the payload.
pub(super) fn show<'p>(packet: &Datagram<'p>) -> (String, &'p [u8]) {
    let bth = &packet.bth;
    let mut text = match bth.opcode {
        Opcode::Of(service, operation) => {
            let name = SERVICES.iter().find(|(each, _)| *each == service).map_or("", |(_, name)| name);
            format!("roce {name} {}", operation.name())
        }
        Opcode::CongestionNotification => "roce cnp".into(),
    };
    // Writing to a string can't fail.
    let _ = write!(text, " > {} psn {}", bth.destination, bth.psn);
    for (flag, name) in flags(bth) {
        text.push_str(if flag { name } else { "" });
    }
    if bth.partition != DEFAULT_PARTITION {
        let _ = write!(text, " pkey {}", bth.partition);
    }
    if let Some(Deth { queue_key, source }) = packet.deth {
        let _ = write!(text, " from {source} qkey {queue_key:#x}");
    }
    if let Some(Reth { address, rkey, len }) = packet.reth {
        let _ = write!(text, " va {address:#x} rkey {rkey:#x} dma {len}");
    }
    if let Some(Atomic { address, rkey, swap_add, compare }) = packet.atomic {
        let _ = write!(text, " va {address:#x} rkey {rkey:#x} swap {swap_add:#x} compare {compare:#x}");
    }
    if let Some(Aeth { syndrome, msn }) = packet.aeth {
        let _ = write!(text, " syndrome {:#x} msn {msn}", syndrome.byte());
    }
    if let Some(original) = packet.original {
        let _ = write!(text, " original {original:#x}");
    }
    if let Some(immediate) = packet.immediate {
        let _ = write!(text, " imm {:#x}", u32::from_be_bytes(immediate));
    }
    if let Some(rkey) = packet.invalidate {
        let _ = write!(text, " inv {rkey:#x}");
    }
    (text, packet.payload)
}

const fn flags(bth: &Bth) -> [(bool, &'static str); 5] {
    [
        (bth.solicited, " se"),
        (bth.migrated, " migrated"),
        (bth.forward_congestion, " fecn"),
        (bth.backward_congestion, " becn"),
        (bth.acknowledge, " ack"),
    ]
}

/// Returns the packet that a layer describes, around `payload`, with room for its ICRC.
pub(super) fn encode(words: &mut Words<'_>, payload: &[u8]) -> Result<Vec<u8>, TextError> {
    let opcode = opcode(words)?;
    words.must(">")?;
    let destination = words.number()?;
    let psn = words.option("psn")?.unwrap_or(0);
    let bth = Bth {
        opcode,
        destination,
        psn,
        solicited: words.has("se"),
        migrated: words.has("migrated"),
        forward_congestion: words.has("fecn"),
        backward_congestion: words.has("becn"),
        acknowledge: words.has("ack"),
        partition: words.option("pkey")?.map_or(DEFAULT_PARTITION, |key| key as u16),
    };
    let operation = opcode.operation();
    let has = |header: fn(Operation) -> bool| operation.is_some_and(header);
    let mut packet = Datagram::new(bth, payload);
    if matches!(opcode, Opcode::Of(Service::Ud, _)) {
        packet.deth =
            Some(Deth { source: words.named("from")? as u32, queue_key: words.named("qkey")? as u32 });
    }
    if has(Operation::has_reth) {
        let (address, rkey) = (words.named("va")?, words.named("rkey")? as u32);
        packet.reth = Some(Reth { address, rkey, len: words.named("dma")? as u32 });
    }
    if has(Operation::has_atomic) {
        let (address, rkey) = (words.named("va")?, words.named("rkey")? as u32);
        let (swap_add, compare) = (words.named("swap")?, words.named("compare")?);
        packet.atomic = Some(Atomic { address, rkey, swap_add, compare });
    }
    if has(Operation::has_aeth) {
        let syndrome = Syndrome::from_byte(words.named("syndrome")? as u8).map_err(|e| words.error(e))?;
        packet.aeth = Some(Aeth { syndrome, msn: words.named("msn")? as u32 });
    }
    if operation == Some(Operation::AtomicAcknowledge) {
        packet.original = Some(words.named("original")?);
    }
    if has(Operation::has_immediate) {
        packet.immediate = Some((words.named("imm")? as u32).to_be_bytes());
    }
    if has(Operation::has_invalidate) {
        packet.invalidate = Some(words.named("inv")? as u32);
    }
    let mut out = vec![0; OVERHEAD + payload.len()];
    let len = roce::write(&packet, &mut out).map_err(|_| words.error("no payload can follow it"))?;
    out.truncate(len);
    Ok(out)
}

fn opcode(words: &mut Words<'_>) -> Result<Opcode, TextError> {
    let word = words.word()?;
    if word == "cnp" {
        return Ok(Opcode::CongestionNotification);
    }
    let service = SERVICES.iter().find(|(_, name)| *name == word).map(|(service, _)| *service);
    let name = words.word()?;
    let operation = Operation::all().find(|operation| operation.name() == name);
    let opcode = service.zip(operation).and_then(|(service, operation)| Opcode::of(service, operation));
    opcode.ok_or_else(|| words.error(format!("there is no '{word} {name}'")))
}
