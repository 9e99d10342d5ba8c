//! The daemon of a scene: two devices, each with its own host if they communicate by RoCE.

use crate::program::{NoRules, common_window, device_at, open_windows};
use crate::scene::{Way, answer, commands};
use hca::Fabric;
use mem::{Burst, Offload, Opened};
use std::path::Path;
use std::sync::Arc;

/// Opens the devices in a directory, and executes commands until its standard input ends.
pub fn run(way: Way, directory: &Path) {
    let fabric = || Arc::new(Fabric::new(Box::new(NoRules)));
    let one = fabric();
    let other = if way == Way::Roce { fabric() } else { one.clone() };
    let trust = way.shares().then(|| "these".to_owned());
    let places = ["a", "b"].map(|name| directory.join(name));
    let (a, port_a) = device_at(&places[0], 0, &one, trust.clone());
    let (b, port_b) = device_at(&places[1], 1, &other, trust);
    let mut windows = Vec::new();
    if matches!(way, Way::Own | Way::Common) {
        windows.extend((way == Way::Common).then(|| common_window(&directory.join("common"))));
        let common = windows.first().cloned();
        let own =
            [&a, &b].into_iter().zip(&places).map(|(device, at)| open_windows(device, at, common.as_ref()));
        windows.extend(own);
    }
    if way == Way::Roce {
        std::thread::spawn(move || carry([port_a, port_b]));
    }
    answer("ready");
    for command in commands() {
        assert_eq!(command.words(), ["look"]);
        // The daemon remembers grants of memory until somebody asks for them after both processes have ended.
        drop((a.holders(), b.holders()));
        answer(&windows.iter().map(|window| window.describe().used).sum::<u64>().to_string());
    }
}

/// Carries frames from port to port forever.
fn carry(mut ports: [Opened; 2]) {
    let mut burst = Burst::new();
    loop {
        for from in 0..2 {
            ports[from].rx[0].poll(&mut burst, usize::MAX);
            let copied = burst.packets().iter().map(|packet| {
                let mut bytes = vec![0; packet.len as usize];
                mem::gather(burst.segments(packet), 0, &mut bytes);
                bytes
            });
            let frames: Vec<_> = copied.collect();
            ports[from].rx[0].release(&mut burst);
            ports[1 - from].tx[0].burst(&mut |room| {
                // A full ring loses the frame.
                frames.iter().for_each(|frame| _ = room.put(frame, &[], 0, 0, &Offload::default()));
            });
        }
        std::thread::yield_now();
    }
}
