//! A plug-in reads or refuses all input of runtimes and other plug-ins.

const CALL: &str = r#"{"cniVersion":"1.1.0","name":"blue","type":"viaduct-cni","network":"blue","mtu":1400,
    "guest":{"policy":false,"rate":{"mbps":100}},"runtimeConfig":{"mac":"02:00:00:00:00:01"},"dns":{},
    "ipam":{"type":"host-local"},"runDir":"/run/viaduct","interface":"net1",
    "prevResult":{"interfaces":[{"name":"eth0","mac":"","sandbox":"/run/netns/x"}],
        "ips":[{"version":"4","address":"10.1.1.7/24","gateway":"10.1.1.254","interface":0}],
        "routes":[{"dst":"0.0.0.0/0"},{"dst":"fd00::/8","gw":"fd00::1","mtu":1280,"priority":7}]},
    "cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]}"#;

const REQUEST: &str = r#"{"container_id":"c1","container_name":"one","port_mappings":null,
    "network":{"name":"pods","internal":false,"options":{"network":"blue","mtu":"1400","guest":"{\"policy\":false}"},
        "subnets":[{"subnet":"10.1.1.0/24","gateway":"10.1.1.254"}],
        "routes":[{"destination":"10.2.0.0/16","gateway":"10.1.1.9","metric":9}]},
    "network_options":{"interface_name":"eth0","static_ips":["10.1.1.7"],"static_mac":null}}"#;

/// Replaces a piece of `text` by `noise`. The result gets further than noise alone.
fn spoilt(text: &str, noise: &str, at: u16, length: u16) -> String {
    let start = text.floor_char_boundary(usize::from(at) % text.len());
    let end = text.floor_char_boundary((start + usize::from(length) % 64).min(text.len()));
    format!("{}{noise}{}", &text[..start], &text[end..])
}

#[test]
fn any_input_is_read_or_refused() {
    for text in [CALL, REQUEST] {
        assert!(
            crate::cni::is_whole(text.as_bytes()) != crate::netavark::is_whole(text.as_bytes()),
            "{text}"
        );
    }
    bolero::check!().with_type::<(String, u16, u16)>().for_each(|(noise, at, length)| {
        for text in [CALL, REQUEST].map(|text| spoilt(text, noise, *at, *length)) {
            crate::cni::is_whole(text.as_bytes());
            crate::netavark::is_whole(text.as_bytes());
        }
    });
}
