//! top: status, live.

use super::{Context, statistics};
use crate::client::Failure;
use crate::output::scaled;
use api::v1::{StatusReply, StatusRequest, VifEntry};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between screens.
const PERIOD: Duration = Duration::from_secs(1);

pub async fn top(on: &mut Context) -> Result<(), Failure> {
    if on.json || !std::io::stdout().is_terminal() {
        return statistics::status(on).await;
    }
    let first = status(on).await?;
    let mut terminal = ratatui::init();
    let result = live(on, &mut terminal, first).await;
    ratatui::restore();
    result
}

async fn status(on: &mut Context) -> Result<StatusReply, Failure> {
    Ok(on.client.status(StatusRequest {}).await?.into_inner())
}

async fn live(
    on: &mut Context,
    terminal: &mut ratatui::DefaultTerminal,
    first: StatusReply,
) -> Result<(), Failure> {
    let (mut before, mut now, mut taken) = (first.clone(), first, Instant::now());
    let mut seconds = PERIOD.as_secs_f64();
    loop {
        terminal.draw(|frame| draw(frame, &before, &now, seconds))?;
        let rest = PERIOD.saturating_sub(taken.elapsed());
        if event::poll(rest)? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(event::KeyModifiers::CONTROL) => {
                        return Ok(());
                    }
                    _ => {}
                },
                _ => {}
            }
            continue;
        }
        seconds = taken.elapsed().as_secs_f64();
        taken = Instant::now();
        before = std::mem::replace(&mut now, status(on).await?);
    }
}

fn draw(frame: &mut Frame<'_>, before: &StatusReply, now: &StatusReply, seconds: f64) {
    let drops = now.reasons.len().min(8) as u16 + 3;
    let areas = Layout::vertical([Constraint::Length(2), Constraint::Min(5), Constraint::Length(drops)]);
    let [head, vifs, reasons] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(format!("{}   (q quits)", statistics::headline(now))).bold(), head);
    frame.render_widget(interfaces(before, now, seconds), vifs);
    frame.render_widget(drop_reasons(before, now, seconds), reasons);
}

fn interfaces<'a>(before: &StatusReply, now: &'a StatusReply, seconds: f64) -> Table<'a> {
    let rate = |vif: &VifEntry, of: fn(&VifEntry) -> u64| {
        let old = before.vifs.iter().find(|old| old.id == vif.id && old.name == vif.name).map_or(0, of);
        of(vif).saturating_sub(old) as f64 / seconds
    };
    let row = |vif: &'a VifEntry| {
        let style = if vif.up { Style::new() } else { Style::new().dim() };
        Row::new([
            Cell::from(vif.name.as_str()),
            Cell::from(vif.kind.as_str()),
            Cell::from(if vif.up { "up" } else { "down" }),
            Cell::from(vif.network()),
            Cell::from(scaled(rate(vif, |v| v.rx_packets))),
            Cell::from(scaled(rate(vif, |v| v.rx_bytes) * 8.0)),
            Cell::from(scaled(rate(vif, |v| v.tx_packets))),
            Cell::from(scaled(rate(vif, |v| v.tx_bytes) * 8.0)),
            Cell::from(scaled(rate(vif, |v| v.rx_drops + v.tx_drops))),
        ])
        .style(style)
    };
    let widths = [16, 8, 6, 14, 9, 9, 9, 9, 9].map(Constraint::Length);
    let titles =
        ["NAME", "KIND", "STATE", "NETWORK", "RX pkt/s", "RX bit/s", "TX pkt/s", "TX bit/s", "DROPS/s"];
    Table::new(now.vifs.iter().map(row), widths).header(Row::new(titles).bold()).block(Block::bordered())
}

fn drop_reasons<'a>(before: &StatusReply, now: &'a StatusReply, seconds: f64) -> Table<'a> {
    let rows = now.reasons.iter().map(|reason| {
        let old = before.reasons.iter().find(|old| old.reason == reason.reason).map_or(0, |old| old.packets);
        let rate = reason.packets.saturating_sub(old) as f64 / seconds;
        Row::new([
            Cell::from(scaled(rate)),
            Cell::from(reason.packets.to_string()),
            Cell::from(reason.reason.as_str()),
            Cell::from(reason.help.as_str()),
        ])
    });
    let widths = [Constraint::Length(9), Constraint::Length(12), Constraint::Length(20), Constraint::Min(20)];
    let titles = ["DROPS/s", "TOTAL", "REASON", "MEANING"];
    Table::new(rows, widths).header(Row::new(titles).bold()).block(Block::bordered())
}
