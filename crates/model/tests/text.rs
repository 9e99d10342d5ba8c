//! Packets as text: the text matches the bytes.

use model::text;

/// Returns a frame of known bytes around an IP packet.
fn framed(packet: &str) -> Vec<u8> {
    text::parse(&format!("eth 02:00:00:00:00:01 > 02:00:00:00:00:02 type 0x0800 / hex {packet}")).unwrap()
}

#[test]
fn roce_packets_are_told_by_their_headers() {
    let ack = framed(
        "4502003000004000401126b90a0000010a000002c01212b7001c00001140ffff00000012000000641f00000107cf7e43",
    );
    assert_eq!(
        text::show(&ack),
        "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.0.0.1 > 10.0.0.2 tos 2 df / udp 49170 > 4791 nosum / \
         roce rc ack > 18 psn 100 migrated syndrome 0x1f msn 1"
    );
    // A packet with a wrong ICRC is shown as bytes.
    let mut wrong = ack.clone();
    *wrong.last_mut().unwrap() ^= 1;
    let shown = text::show(&wrong);
    assert!(shown.contains("udp 49170 > 4791 nosum / hex 1140ffff"), "{shown}");
    assert_eq!(text::parse(&shown), Ok(wrong));
}

#[test]
fn every_kind_of_roce_packet_comes_back() {
    for layer in [
        "roce cnp > 17 psn 0 becn",
        "roce rc send-only > 17 psn 16777215 se ack / payload 5",
        "roce rc send-only-imm > 17 psn 1 imm 0xdeadbeef",
        "roce rc send-last-inv > 17 psn 1 inv 0x10 / payload 1",
        "roce rc write-first > 17 psn 1 va 0x7f0000000001 rkey 0xffffffff dma 4096 / payload 1024",
        "roce rc read-request > 17 psn 1 ack va 0xffffffffffffffff rkey 0x1 dma 0",
        "roce rc read-middle > 17 psn 1 / payload 256",
        "roce rc read-only > 17 psn 1 syndrome 0x1f msn 3",
        "roce rc compare-swap > 17 psn 1 ack va 0x8 rkey 0x1 swap 0x1 compare 0xffffffffffffffff",
        "roce rc atomic-ack > 17 psn 1 syndrome 0x0 msn 3 original 0x1",
        "roce uc write-last-imm > 17 psn 1 pkey 32769 imm 0x1 / payload 3",
        "roce ud send-only > 1 psn 1 from 1 qkey 0x80010000 / payload 256",
    ] {
        for ip in ["ip4 10.0.0.1 > 10.0.0.2 id 7 df", "ip6 fd00::1 > fd00::2 tos 4 flow 9"] {
            let text = format!(
                "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / {ip} / udp 49170 > 4791 nosum / {layer}"
            );
            assert_eq!(text::parse(&text).map(|frame| text::show(&frame)), Ok(text));
        }
    }
}

#[test]
fn roce_packets_that_cannot_be_are_refused() {
    for (layer, what) in [
        ("roce uc read-request > 17", "there is no 'uc read-request'"),
        ("roce rc jump > 17", "there is no 'rc jump'"),
        ("roce rc write-only > 17", "ends too early"),
        ("roce rc ack > 17 syndrome 0x40 msn 1", "reserved acknowledge syndrome"),
        ("roce rc ack > 17 syndrome 0x1f msn 1 / payload 4", "no payload can follow it"),
        ("roce rc send-only > 0x100000000", "too large"),
    ] {
        let text = format!("ip4 10.0.0.1 > 10.0.0.2 / udp 1 > 4791 nosum / {layer}");
        let error = text::parse(&text).unwrap_err().to_string();
        assert!(error.contains(what), "{layer}: {error}");
    }
}

/// A guest may send layers of any depth, and everyone with read access may ask for the text of any frame.
#[test]
fn deep_packets_are_shown_and_deep_texts_refused() {
    const DEPTH: usize = 16_000;
    let gre = "4500000000000000402f00000a0000010a00000200008847";
    let labels = framed(&format!("{gre}{}", "00010040".repeat(DEPTH)));
    let quoted = framed(&"4500000000000000400100000a0000010a0000020300000000000000".repeat(DEPTH / 8));
    let tags = [&[2; 12][..], &[0x81, 0, 0, 7].repeat(DEPTH)].concat();
    for mut frame in [labels, quoted, tags] {
        // Sets the lengths to all that follows.
        if frame[12..14] == [8, 0] {
            let length = (frame.len() - 14).min(0xffff) as u16;
            frame[16..18].copy_from_slice(&length.to_be_bytes());
        }
        let shown = text::show(&frame);
        assert!(shown.contains("hex "), "{shown}");
        assert!(text::parse(&shown) == Ok(frame), "{shown}");
    }
    for layer in ["mpls 1", "hex", "payload 65535", "icmp 3 0"] {
        let error = text::parse(&[layer; 100_000].join(" / ")).unwrap_err();
        assert!(error.to_string().contains("at most 64 layers"), "{error}");
    }
    let pads = format!("payload 1{}", " / pad 65535".repeat(100_000));
    assert!(text::parse(&pads).unwrap_err().to_string().contains("at most 64 layers"));
    let tagged = format!("eth 02:00:00:00:00:01 > 02:00:00:00:00:02{}", " vlan 1".repeat(100_000));
    assert!(text::parse(&tagged).unwrap_err().what.contains("at most 8 tags"));
}

const ENDS: &str = "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ";

/// Guests with checksum offload send these, and the first bytes of a dropped packet are all that is known.
#[test]
fn checksums_that_are_left_wrong_or_unknown_are_told() {
    let long = "hex ".to_owned() + &"5a".repeat(1448);
    for ip in ["ip4 10.0.0.1 > 10.0.0.2 df", "ip6 fd00::1 > fd00::2"] {
        let icmp = if ip.starts_with("ip4") { "icmp" } else { "icmp6" };
        for layer in [
            "tcp 40000 > 80 PA seq 7 ack 9 win 502 options 0101080a0000000100000002 partial".to_owned(),
            "udp 1000 > 53 partial".to_owned(),
            "tcp 40000 > 80 S sum 0x1234".to_owned(),
            "udp 1000 > 53 sum 0x0001".to_owned(),
            "sctp 1 > 2 sum 0x12345678".to_owned(),
            format!("{icmp} echo 1 2 sum 0x0001"),
            format!("{icmp} 3 1 0 sum 0x0001"),
        ] {
            for payload in ["payload 5", &long] {
                let text = format!("{ENDS}{ip} / {layer} / {payload}");
                let frame = text::parse(&text).unwrap();
                assert_eq!(text::show(&frame), text);
                let shown = text::describe(&frame, frame.len());
                let short = if payload == long { "payload 1448" } else { payload };
                assert_eq!(shown, format!("{ENDS}{ip} / {layer} / {short}"));
                assert_eq!(text::parse(&shown).unwrap()[..40], frame[..40]);
            }
        }
    }
}

#[test]
fn the_first_bytes_of_a_packet_are_described_by_its_headers() {
    let text = format!("{ENDS}ip4 10.0.0.1 > 10.0.0.2 df / tcp 40000 > 80 A seq 7 / payload 1448");
    let frame = text::parse(&text).unwrap();
    let shown = text::describe(&frame[..128], frame.len());
    let (start, end) = shown.split_once(" sum 0x").unwrap();
    assert_eq!(start, text.strip_suffix(" / payload 1448").unwrap());
    assert_eq!(&end[4..], " / payload 1448 / cut 128");
    assert_eq!(text::describe(&[1, 2, 3], 900), "hex 010203", "no header");
}
