use super::Configured;
use crate::compile::verbs_vif;
use crate::core::View;
use crate::rdma::RdmaStatus;
use crate::windows::{WindowOf, WindowSpec, WindowStatus};
use api::v1::{RdmaWindow, RdmaWindowUser};
use std::collections::BTreeMap;

/// Lists the windows of these devices, the common ones after the others. `problems`: what is wrong with them,
/// by [`WindowSpec::object`].
pub(super) fn list(
    view: &View,
    configured: &[Configured<'_>],
    live: &[RdmaStatus],
    problems: &[(String, String)],
) -> Vec<RdmaWindow> {
    // Virtual machines with a window, and the files that hold their memory.
    let machines = configured.iter().filter(|of| of.spec.window.is_some());
    let machines: Vec<_> =
        machines.map(|of| (of.guest.name.as_str(), view.memory_files(&of.guest.name))).collect();
    let problem = |name: &str| {
        let object = WindowSpec::object(name);
        problems.iter().find(|(of, _)| *of == object).map(|(_, why)| why.clone())
    };
    let (mut own, mut commons) = (Vec::new(), BTreeMap::new());
    for of in configured {
        let status = live.iter().find(|live| live.name == of.spec.name);
        if let Some(spec) = &of.spec.window {
            let status = status.and_then(|live| live.window.as_ref());
            let mut window = window(spec, status, &machines);
            window.device = Some(of.spec.name.clone());
            window.users = users(of, status).collect();
            // A device is not opened without its own window.
            let port = verbs_vif(of.guest).and_then(|vif| view.port(&vif).fault);
            window.fault = port.or_else(|| problem(&window.name));
            own.push(window);
        }
        if let Some(spec) = &of.spec.common {
            let status = status.and_then(|live| live.common.as_ref());
            let common = commons.entry(&spec.path).or_insert_with(|| window(spec, None, &machines));
            if common.uuid.is_empty() {
                *common = RdmaWindow {
                    users: std::mem::take(&mut common.users),
                    ..window(spec, status, &machines)
                };
            }
            common.users.extend(users(of, status));
        }
    }
    for common in commons.values_mut() {
        common.fault = problem(&common.name);
    }
    own.into_iter().chain(commons.into_values()).collect()
}

/// Describes a window without its users. `machines`: guests, and the files that hold their memory.
fn window(
    spec: &WindowSpec,
    status: Option<&WindowStatus>,
    machines: &[(&str, Vec<(u64, u64)>)],
) -> RdmaWindow {
    let (kind, trust) = match &spec.of {
        WindowOf::Guest(_) => ("own", None),
        WindowOf::Trust(trust) => ("common", Some(trust.clone())),
    };
    let attached = |status: &WindowStatus| {
        let has = machines.iter().filter(|(_, files)| files.contains(&status.file));
        has.map(|(guest, _)| (*guest).to_owned()).collect()
    };
    RdmaWindow {
        name: spec.name(),
        kind: kind.to_owned(),
        trust,
        path: spec.path.display().to_string(),
        uuid: status.map(|status| status.uuid.clone()).unwrap_or_default(),
        bytes: spec.bytes,
        used_bytes: status.map_or(0, |status| status.used),
        left_bytes: status.map_or(0, |status| status.left),
        attached: status.map(attached).unwrap_or_default(),
        ..RdmaWindow::default()
    }
}

/// Lists the programs of a device that have memory of a window.
fn users<'a>(
    of: &'a Configured<'_>,
    status: Option<&'a WindowStatus>,
) -> impl Iterator<Item = RdmaWindowUser> + 'a {
    status.into_iter().flat_map(|status| &status.users).map(|user| RdmaWindowUser {
        device: of.spec.name.clone(),
        guest: of.guest.name.clone(),
        pid: user.pid.unsigned_abs(),
        program: user.program.clone(),
        bytes: user.bytes,
    })
}
