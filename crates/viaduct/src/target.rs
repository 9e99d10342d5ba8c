//! The argument of `--to`: a target as one word.

use api::v1::Target;

/// The forms of a target, for help and messages.
pub const FORMS: &str = "drop, guest:NAME, network:NAME, nexthop:NAME, via:ADDRESS, mpls-over-udp:REMOTE:LABEL, \
     mpls-over-gre:REMOTE:LABEL or vxlan:REMOTE:VNI[@MAC]; an IPv6 remote stands in brackets; \
     one of several may have a share: TARGET,weight=N";

pub fn parse(text: &str) -> Result<Target, String> {
    let wrong = || format!("\"{text}\" is no target; use {FORMS}");
    if let Some((target, weight)) = text.split_once(",weight=") {
        let weight = Some(weight.parse().map_err(|_| wrong())?);
        return Ok(Target { weight, ..parse(target)? });
    }
    if text == "drop" {
        return Ok(Target { drop: Some(true), ..Target::default() });
    }
    let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
    let value = Some(rest.to_owned());
    Ok(match kind {
        "guest" => Target { guest: value, ..Target::default() },
        "network" => Target { network: value, ..Target::default() },
        "nexthop" => Target { nexthop: value, ..Target::default() },
        "via" => Target { via: value, ..Target::default() },
        "mpls-over-udp" | "mpls-over-gre" | "vxlan" => tunnel(kind, rest).ok_or_else(wrong)?,
        _ => return Err(wrong()),
    })
}

fn tunnel(kind: &str, text: &str) -> Option<Target> {
    let (text, mac) = match text.split_once('@') {
        Some((text, mac)) => (text, Some(mac.to_owned())),
        None => (text, None),
    };
    let (remote, id) = text.rsplit_once(':')?;
    let remote = remote.strip_prefix('[').and_then(|r| r.strip_suffix(']')).unwrap_or(remote);
    let id = Some(id.parse().ok()?);
    let (label, vni) = if kind == "vxlan" { (None, id) } else { (id, None) };
    Some(Target {
        tunnel: Some(kind.to_owned()),
        remote: Some(remote.to_owned()),
        label,
        vni,
        mac,
        ..Target::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read() {
        let fields = |text: &str| {
            let target = parse(text).unwrap();
            (target.remote().to_owned(), target.label, target.vni, target.mac().to_owned())
        };
        assert_eq!(fields("mpls-over-udp:192.0.2.2:100"), ("192.0.2.2".into(), Some(100), None, "".into()));
        assert_eq!(
            fields("mpls-over-gre:[2001:db8::2]:101"),
            ("2001:db8::2".into(), Some(101), None, "".into())
        );
        let mac = "02:00:00:00:00:09";
        assert_eq!(
            fields(&format!("vxlan:192.0.2.2:5001@{mac}")),
            ("192.0.2.2".into(), None, Some(5001), mac.into())
        );
        assert_eq!(parse("drop").unwrap().drop, Some(true));
        assert_eq!(parse("guest:vm2").unwrap().guest(), "vm2");
        assert_eq!(parse("via:fd00::9").unwrap().via(), "fd00::9");
        let weighted = parse("via:fd00::9,weight=3").unwrap();
        assert_eq!((weighted.via(), weighted.weight), ("fd00::9", Some(3)));
    }

    #[test]
    fn other_words_are_refused_with_what_would_do() {
        for text in
            ["", "dorp", "mpls-over-udp:192.0.2.2", "vxlan:192.0.2.2:x", "elsewhere:1", "drop,weight=x"]
        {
            assert!(parse(text).unwrap_err().contains("is no target"), "{text}");
        }
    }
}
