//! top: status, live.

use super::{Context, statistics};
use crate::client::{Failure, connect};
use crate::output::scaled;
use api::v1::{DropCount, StatusReply, StatusRequest, VifEntry, WorkerStats};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Text;
use ratatui::widgets::{Block, Cell, Clear, Padding, Paragraph, Row, Table};
use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between screens.
const PERIOD: Duration = Duration::from_secs(1);

/// Most rows of workers and of drop reasons.
const MOST_ROWS: u16 = 8;

const TITLES: [&str; 9] =
    ["NAME", "KIND", "STATE", "NETWORK", "RX pkt/s", "RX bit/s", "TX pkt/s", "TX bit/s", "DROPS/s"];

/// The first column with a number.
const FIRST_RATE: usize = 4;

const HELP: &str = "\
left, right     sort by another column
r               reverse the order
up, down        scroll by a line
PgUp, PgDn      scroll by ten lines
Home, End       scroll to the first, last line
space           hold the screen, go on
?, h            this help
q, Esc          quit";

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

/// Asks the daemon, or the one that has replaced it.
async fn again(on: &mut Context) -> Result<StatusReply, Failure> {
    match status(on).await {
        Err(Failure::NoDaemon(_)) => {
            on.client = connect(&on.run_dir).await?;
            status(on).await
        }
        other => other,
    }
}

async fn live(
    on: &mut Context,
    terminal: &mut ratatui::DefaultTerminal,
    first: StatusReply,
) -> Result<(), Failure> {
    let mut taken = Instant::now();
    let seconds = PERIOD.as_secs_f64();
    let mut screen = Screen { before: first.clone(), now: first, seconds, is_away: false };
    let mut view = View::default();
    while !view.quits {
        terminal.draw(|frame| draw(frame, &screen, &mut view))?;
        if event::poll(PERIOD.saturating_sub(taken.elapsed()))? {
            if let Event::Key(key) = event::read()? {
                view.press(key);
            }
            continue;
        }
        let seconds = taken.elapsed().as_secs_f64();
        taken = Instant::now();
        match again(on).await {
            Ok(now) if !view.holds => {
                // A new daemon counts from what the last one left.
                let before = std::mem::replace(&mut screen.now, now);
                screen = Screen { before, seconds, is_away: false, ..screen };
            }
            Ok(_) => screen.is_away = false,
            Err(Failure::NoDaemon(_)) => screen.is_away = true,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The data on the screen: two states, and the time between them.
struct Screen {
    before: StatusReply,
    now: StatusReply,
    seconds: f64,
    /// Whether no daemon answers at present.
    is_away: bool,
}

#[derive(Debug, Default, PartialEq)]
struct View {
    /// Index of the column.
    sorted_by: usize,
    reversed: bool,
    /// Interfaces above the screen.
    scrolled: usize,
    helps: bool,
    /// Whether the screen stays as it is.
    holds: bool,
    quits: bool,
}

impl View {
    fn press(&mut self, key: KeyEvent) {
        if key.kind != KeyEventKind::Press {
            return;
        }
        let last = TITLES.len() - 1;
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => self.quits = true,
            KeyCode::Esc if self.helps => self.helps = false,
            KeyCode::Char('q') | KeyCode::Esc => self.quits = true,
            KeyCode::Char('?' | 'h') => self.helps = !self.helps,
            KeyCode::Char(' ') => self.holds = !self.holds,
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Left => self.sorted_by = self.sorted_by.checked_sub(1).unwrap_or(last),
            KeyCode::Right => self.sorted_by = if self.sorted_by == last { 0 } else { self.sorted_by + 1 },
            KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Down => self.scrolled = self.scrolled.saturating_add(1),
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(10),
            KeyCode::PageDown => self.scrolled = self.scrolled.saturating_add(10),
            KeyCode::Home => self.scrolled = 0,
            KeyCode::End => self.scrolled = usize::MAX,
            _ => {}
        }
    }
}

/// An interface and its rates per second.
struct Line<'a> {
    vif: &'a VifEntry,
    rates: [f64; 5],
}

impl<'a> Line<'a> {
    fn new(vif: &'a VifEntry, screen: &Screen) -> Self {
        let old = screen.before.vifs.iter().find(|old| old.id == vif.id && old.name == vif.name);
        let rate =
            |of: fn(&VifEntry) -> u64| of(vif).saturating_sub(old.map_or(0, of)) as f64 / screen.seconds;
        let rates = [
            rate(|v| v.rx_packets),
            rate(|v| v.rx_bytes) * 8.0,
            rate(|v| v.tx_packets),
            rate(|v| v.tx_bytes) * 8.0,
            rate(|v| v.rx_drops + v.tx_drops),
        ];
        Self { vif, rates }
    }

    fn text(&self, column: usize) -> &str {
        match column {
            0 => &self.vif.name,
            1 => &self.vif.kind,
            2 if self.vif.fault.is_some() => "fault",
            2 if self.vif.up => "up",
            2 => "down",
            _ => self.vif.network(),
        }
    }

    /// Orders names from a to z, and rates from the largest.
    fn order(&self, other: &Self, column: usize) -> Ordering {
        match column.checked_sub(FIRST_RATE) {
            Some(rate) => other.rates[rate].total_cmp(&self.rates[rate]),
            None => self.text(column).cmp(other.text(column)),
        }
    }

    fn row(&self) -> Row<'a> {
        let texts = (0..FIRST_RATE).map(|column| Cell::from(self.text(column).to_owned()));
        let cells = texts.chain(self.rates.iter().map(|rate| number(scaled(*rate))));
        let is_well = self.vif.up && self.vif.fault.is_none();
        Row::new(cells).style(if is_well { Style::new() } else { Style::new().dim() })
    }
}

/// Makes the cell of a number: right-aligned, so that numbers below each other compare.
fn number(text: impl Into<Cow<'static, str>>) -> Cell<'static> {
    Cell::from(Text::from(text.into()).right_aligned())
}

/// Returns the interfaces in the chosen order.
fn lines<'a>(screen: &'a Screen, view: &View) -> Vec<Line<'a>> {
    let mut lines: Vec<_> = screen.now.vifs.iter().map(|vif| Line::new(vif, screen)).collect();
    lines.sort_by(|a, b| {
        let order = a.order(b, view.sorted_by);
        if view.reversed { order.reverse() } else { order }
    });
    lines
}

fn draw(frame: &mut Frame<'_>, screen: &Screen, view: &mut View) {
    let rows = |count: usize| (count as u16).min(MOST_ROWS) + 3;
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(5),
        Constraint::Length(rows(screen.now.workers.len())),
        Constraint::Length(rows(screen.now.reasons.len())),
    ]);
    let [head, vifs, workers, drops] = areas.areas(frame.area());
    let hint = match (screen.is_away, view.holds) {
        (true, _) => "no daemon answers; asking again",
        (false, true) => "held: space goes on",
        (false, false) => "? for help",
    };
    // In front, where a narrow terminal does not cut it off.
    let text = format!("({hint})   {}", statistics::headline(&screen.now));
    frame.render_widget(Paragraph::new(text).bold(), head);
    frame.render_widget(interfaces(screen, view, vifs), vifs);
    frame.render_widget(workers_table(screen), workers);
    frame.render_widget(drop_reasons(screen), drops);
    if view.helps {
        let [area] = Layout::horizontal([Constraint::Length(56)]).areas(frame.area());
        let area = Rect { height: (HELP.lines().count() as u16 + 2).min(area.height), ..area };
        frame.render_widget(Clear, area);
        frame.render_widget(
            Paragraph::new(HELP).block(Block::bordered().title(" keys ").padding(Padding::horizontal(1))),
            area,
        );
    }
}

fn interfaces<'a>(screen: &'a Screen, view: &mut View, area: Rect) -> Table<'a> {
    let lines = lines(screen, view);
    // Frame and titles take three lines.
    let room = usize::from(area.height.saturating_sub(3)).max(1);
    view.scrolled = view.scrolled.min(lines.len().saturating_sub(room));
    let last = lines.len().min(view.scrolled + room);
    let place = format!(" interfaces {} to {last} of {} ", (view.scrolled + 1).min(last), lines.len());
    let mark = if view.reversed { '^' } else { 'v' };
    let title = |(i, title): (usize, &str)| {
        if i == view.sorted_by { format!("{title}{mark}") } else { title.to_owned() }
    };
    let titled = |(i, name)| {
        let title = title((i, name));
        if i < FIRST_RATE { Cell::from(title) } else { number(title) }
    };
    let titles = TITLES.into_iter().enumerate().map(titled);
    let widths = [16, 8, 6, 14, 9, 9, 9, 9, 9].map(Constraint::Length);
    let rows: Vec<_> = lines[view.scrolled..last].iter().map(Line::row).collect();
    Table::new(rows, widths)
        .header(Row::new(titles).bold())
        .block(Block::bordered().title(place).title_alignment(Alignment::Right))
}

/// Computes the share of a worker's time in which it had work, percent; the rest it polled in vain or slept.
fn load(before: &WorkerStats, now: &WorkerStats) -> f64 {
    let (old, new) = (before.cycles.unwrap_or_default(), now.cycles.unwrap_or_default());
    let busy = new.busy.saturating_sub(old.busy);
    let rest = (new.idle + new.asleep).saturating_sub(old.idle + old.asleep);
    if busy == 0 { 0.0 } else { busy as f64 * 100.0 / (busy + rest) as f64 }
}

fn workers_table(screen: &Screen) -> Table<'_> {
    let rows = screen.now.workers.iter().map(|worker| {
        let nothing = WorkerStats::default();
        let old = screen.before.workers.iter().find(|old| old.worker == worker.worker).unwrap_or(&nothing);
        let rate = |of: fn(&WorkerStats) -> u64| of(worker).saturating_sub(of(old)) as f64 / screen.seconds;
        let busy = |of: &WorkerStats| of.cycles.unwrap_or_default().busy;
        let cycles = (busy(worker).saturating_sub(busy(old))) as f64 / screen.seconds;
        let packets = rate(|w| w.packets);
        let cells = [
            worker.worker.to_string(),
            worker.cpu.map_or_else(|| "-".to_owned(), |cpu| cpu.to_string()),
            format!("{:.0} %", load(old, worker)),
            scaled(packets),
            scaled(rate(|w| w.drops)),
            if packets > 0.0 { scaled(cycles / packets) } else { "-".to_owned() },
        ];
        Row::new(cells.map(number))
    });
    let widths = [8, 6, 8, 10, 10, 14].map(Constraint::Length);
    let titles = ["WORKER", "CPU", "LOAD", "pkt/s", "DROPS/s", "CYCLES/pkt"].map(number);
    Table::new(rows, widths).header(Row::new(titles).bold()).block(Block::bordered())
}

fn drop_reasons(screen: &Screen) -> Table<'_> {
    let new = |reason: &DropCount| {
        let old = screen.before.reasons.iter().find(|old| old.reason == reason.reason);
        reason.packets.saturating_sub(old.map_or(0, |old| old.packets))
    };
    // The sort is stable, and the daemon's order is that of the totals.
    let mut reasons: Vec<_> = screen.now.reasons.iter().map(|reason| (new(reason), reason)).collect();
    reasons.sort_by_key(|(new, _)| Reverse(*new));
    let rows = reasons.into_iter().map(|(new, reason)| {
        Row::new([
            number(scaled(new as f64 / screen.seconds)),
            number(reason.packets.to_string()),
            Cell::from(reason.reason.as_str()),
            Cell::from(reason.help.as_str()),
        ])
    });
    let widths = [Constraint::Length(9), Constraint::Length(12), Constraint::Length(20), Constraint::Min(20)];
    let titles = [number("DROPS/s"), number("TOTAL"), Cell::from("REASON"), Cell::from("MEANING")];
    Table::new(rows, widths).header(Row::new(titles).bold()).block(Block::bordered())
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::v1::StageCycles;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen() -> Screen {
        let vif = |id: u32, rx_packets| {
            let name = format!("vm{id:02}");
            VifEntry { id, name, rx_packets, up: true, ..VifEntry::default() }
        };
        let worker = |busy, idle, asleep| WorkerStats {
            cycles: Some(StageCycles { busy, idle, asleep, ..StageCycles::default() }),
            ..WorkerStats::default()
        };
        let state = |rates: [u64; 30], worker| StatusReply {
            vifs: (0..).zip(rates).map(|(id, packets)| vif(id, packets)).collect(),
            workers: vec![worker],
            ..StatusReply::default()
        };
        let mut rates = [0; 30];
        (rates[7], rates[20]) = (3000, 500);
        Screen {
            before: state([0; 30], worker(0, 0, 0)),
            now: state(rates, worker(250, 250, 500)),
            seconds: 1.0,
            is_away: false,
        }
    }

    fn shown(view: &mut View) -> String {
        on_screen(&screen(), view)
    }

    fn on_screen(screen: &Screen, view: &mut View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(120, 24)).unwrap();
        terminal.draw(|frame| draw(frame, screen, view)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..120).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..24).map(line).collect::<Vec<_>>().join("\n")
    }

    fn press(view: &mut View, code: KeyCode) {
        view.press(KeyEvent::new(code, KeyModifiers::NONE));
    }

    #[test]
    fn interfaces_are_sorted_by_any_column() {
        let mut view = View { sorted_by: FIRST_RATE, ..View::default() };
        let first = |view: &View| lines(&screen(), view)[0].vif.name.clone();
        assert_eq!(first(&view), "vm07");
        press(&mut view, KeyCode::Char('r'));
        assert_eq!(lines(&screen(), &view)[29].vif.name, "vm07");
        (view.sorted_by, view.reversed) = (0, false);
        assert_eq!(first(&view), "vm00");
        press(&mut view, KeyCode::Left);
        assert_eq!(view.sorted_by, TITLES.len() - 1);
        press(&mut view, KeyCode::Right);
        assert_eq!(view.sorted_by, 0);
    }

    #[test]
    fn what_does_not_fit_is_scrolled_to() {
        let mut view = View::default();
        let text = shown(&mut view);
        assert!(text.contains("vm00") && !text.contains("vm29"), "{text}");
        press(&mut view, KeyCode::End);
        let text = shown(&mut view);
        assert!(!text.contains("vm00") && text.contains("vm29") && text.contains("of 30"), "{text}");
        assert!(view.scrolled < 30, "no further than the end");
    }

    #[test]
    fn numbers_are_right_aligned() {
        let text = shown(&mut View { sorted_by: FIRST_RATE, ..View::default() });
        let end = |what: &str| text.lines().find_map(|line| Some(line.find(what)? + what.len()));
        assert_eq!((end("RX pkt/sv"), end(" 500")), (end(" 3.00k"), end("RX pkt/sv")), "{text}");
    }

    #[test]
    fn present_drops_come_first() {
        let count =
            |reason: &str, packets| DropCount { reason: reason.into(), packets, ..DropCount::default() };
        let mut screen = screen();
        screen.before.reasons = vec![count("long_ago", 900), count("now", 10)];
        screen.now.reasons = vec![count("long_ago", 900), count("now", 12)];
        let text = on_screen(&screen, &mut View::default());
        let line = |what: &str| text.lines().position(|line| line.contains(what));
        assert!(line(" now ").unwrap() < line(" long_ago ").unwrap(), "{text}");
    }

    #[test]
    fn load_and_help_are_shown() {
        let mut view = View::default();
        assert!(shown(&mut view).contains("25 %"));
        press(&mut view, KeyCode::Char('?'));
        assert!(shown(&mut view).contains("reverse the order"));
        press(&mut view, KeyCode::Esc);
        assert_eq!(view, View::default());
        press(&mut view, KeyCode::Esc);
        assert!(view.quits);
    }
}
