//! `softdpu top`: the status, live, with rates from what changed between two statuses.

mod ports;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Row, Table};

use softdpu_api::status::elapsed;

use super::table::{heavy_rows, one_line, restarts, scaled, short, top_rows};
use softdpu_api::status::{ColourCount, CoreStatus, DeviceStatus, MeterStatus, NodeStatus, QueueStatus, TenantStatus};

/// How often the status is asked for.
const INTERVAL: Duration = Duration::from_secs(1);

/// Lines of a list of the heaviest.
const MOST_TOP: usize = 12;

/// Rows of the screen that a list of disks or interfaces has at the least, its header and the row behind it included.
const LEAST: u16 = 4;

/// What is shown: the last status, and the one before for the rates.
#[derive(Debug, Default)]
pub struct Top {
    now: Option<(Instant, NodeStatus)>,
    before: Option<(Instant, NodeStatus)>,
    /// Why there is no newer status.
    error: Option<String>,
}

impl Top {
    /// Takes a status that was read at `at`, or why there is none; the last one stays on the screen.
    pub fn update(&mut self, at: Instant, status: Result<NodeStatus, String>) {
        match status {
            Ok(status) => {
                self.before = self.now.replace((at, status));
                self.error = None;
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// Draws it.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let Some((_, status)) = &self.now else {
            let text = self.error.as_deref().unwrap_or("asking softdpu for its status …");
            frame.render_widget(Paragraph::new(one_line(text)), frame.area());
            return;
        };
        let mut head = vec![Line::from(format!(
            "softdpu {}  up {}  data plane {} ({})  q quits",
            one_line(&status.version),
            elapsed(status.uptime_s),
            status.data_plane.state,
            restarts(status.data_plane.restarts)
        ))];
        let alarm = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
        let problems = self.error.iter().cloned().chain(status.problems());
        head.extend(problems.map(|problem| Line::styled(format!("! {}", one_line(&problem)), alarm)));
        let rows = |count: usize| u16::try_from(count + 2).unwrap_or(u16::MAX);
        let heaviest = top_rows(&status.functions);
        let part = |count: usize| if count == 0 { 0 } else { rows(count) };
        let heavy = heavy_rows(status);
        let disks = part(status.devices.iter().filter(|device| device.volume.is_some()).count());
        let ports = part(ports::ports(status).count());
        let before = [rows(head.len() - 1), rows(status.cores.len()), part(heavy.len().min(MOST_TOP))];
        let mut left = before.iter().fold(frame.area().height, |left, part| left.saturating_sub(*part));
        // Disks and interfaces have what the others leave, and a line or two before what is behind them.
        let least = disks.min(LEAST) + ports.min(LEAST);
        let behind = [heaviest.len(), status.meters.len(), status.tenants.len()].map(|count| {
            let part = part(count.min(MOST_TOP)).min(left.saturating_sub(least));
            left -= part;
            part
        });
        let lists = two_lists(left, disks, ports);
        let parts = before.into_iter().chain(lists).chain(behind).map(Constraint::Length).chain([Constraint::Min(0)]);
        let [top, cores, heavies, devices, interfaces, tops, meters, tenants, _] =
            Layout::vertical(parts).areas(frame.area());
        frame.render_widget(Paragraph::new(Text::from(head)), top);
        frame.render_widget(self.cores(status), cores);
        frame.render_widget(heavy_table(heavy), heavies);
        frame.render_widget(self.disks(status), devices);
        frame.render_widget(self.ports(status), interfaces);
        frame.render_widget(heaviest_table(heaviest), tops);
        frame.render_widget(self.meters(status), meters);
        frame.render_widget(self.tenants(status), tenants);
    }

    fn before(&self) -> Option<&NodeStatus> {
        self.before.as_ref().map(|(_, status)| status)
    }

    /// Seconds between the two statuses.
    fn seconds(&self) -> Option<f64> {
        let (now, before) = (self.now.as_ref()?.0, self.before.as_ref()?.0);
        Some(now.saturating_duration_since(before).as_secs_f64()).filter(|seconds| *seconds > 0.0)
    }

    /// How much a counter grew per second. A counter that fell began again at zero: the data plane was restarted.
    fn rate(&self, now: u64, before: Option<u64>) -> Option<f64> {
        let before = before?;
        let grown = if now >= before { now - before } else { now };
        Some(grown as f64 / self.seconds()?)
    }

    fn cores(&self, status: &NodeStatus) -> Table<'static> {
        let rows = status.cores.iter().map(|core| {
            let old = self.before().and_then(|old| old.cores.iter().find(|old| old.cpu == core.cpu));
            let rate = |counter: fn(&CoreStatus) -> u64| self.rate(counter(core), old.map(counter));
            let busy = match (rate(|core| core.busy_ns), rate(|core| core.idle_ns)) {
                (Some(busy), Some(idle)) if busy + idle > 0.0 => format!("{:.1}%", busy * 100.0 / (busy + idle)),
                _ => "-".to_owned(),
            };
            Row::new([
                core.cpu.to_string(),
                core.state.to_string(),
                busy,
                per_second(rate(|core| core.loops)),
                per_second(rate(|core| core.wakeups)),
                per_second(rate(|core| core.yields.preempted)),
                core.queues.to_string(),
            ])
        });
        table(
            rows,
            &["CORE", "STATE", "BUSY", "LOOPS/s", "WAKEUPS/s", "PREEMPTED/s", "QUEUES"],
            [6, 10, 8, 12, 12, 12, 8].map(Constraint::Length),
        )
    }

    /// Devices of volumes.
    fn disks(&self, status: &NodeStatus) -> Table<'static> {
        let rows = status.devices.iter().filter(|device| device.volume.is_some()).map(|device| {
            let old = self.before().and_then(|old| old.devices.iter().find(|old| old.name == device.name));
            let rate = |counter: fn(&QueueStatus) -> u64| {
                let sum = |device: &DeviceStatus| device.queues.iter().map(counter).fold(0, u64::saturating_add);
                self.rate(sum(device), old.map(sum))
            };
            let inflight = device.queues.iter().map(|queue| u64::from(queue.inflight)).sum();
            Row::new([
                one_line(&device.name),
                device.state.to_string(),
                one_line(&device.tenant),
                per_second(rate(|queue| queue.requests.reads)),
                per_second(rate(|queue| queue.requests.writes)),
                bytes_per_second(rate(|queue| queue.read_bytes)),
                bytes_per_second(rate(|queue| queue.written_bytes)),
                short(inflight),
                per_second(rate(|queue| queue.errors)),
            ])
        });
        let header = ["DISK", "STATE", "TENANT", "READS/s", "WRITES/s", "READ/s", "WRITTEN/s", "INFLIGHT", "ERRORS/s"];
        table(rows, &header, [18, 10, 10, 9, 9, 11, 11, 9, 9].map(Constraint::Length))
    }

    /// What packets are by their colour.
    fn meters(&self, status: &NodeStatus) -> Table<'static> {
        let rows = status.meters.iter().take(MOST_TOP).map(|meter| {
            let old = self.before().and_then(|old| old.meters.iter().find(|old| old.name == meter.name));
            let rate = |count: fn(&ColourCount) -> u64, colour: fn(&MeterStatus) -> ColourCount| {
                self.rate(count(&colour(meter)), old.map(|old| count(&colour(old))))
            };
            let mut row = vec![one_line(&meter.name)];
            let colours: [fn(&MeterStatus) -> ColourCount; 3] = [|all| all.green, |all| all.yellow, |all| all.red];
            for colour in colours {
                row.push(per_second(rate(|count| count.packets, colour)));
                row.push(bytes_per_second(rate(|count| count.bytes, colour)));
            }
            Row::new(row)
        });
        let header = ["METER", "GREEN/s", "GREEN/s", "YELLOW/s", "YELLOW/s", "RED/s", "RED/s"];
        table(rows, &header, [24, 9, 12, 9, 12, 9, 12].map(Constraint::Length))
    }

    fn tenants(&self, status: &NodeStatus) -> Table<'static> {
        let before: HashMap<&str, &TenantStatus> =
            self.before().into_iter().flat_map(|old| &old.tenants).map(|old| (old.name.as_str(), old)).collect();
        let mut tenants: Vec<&TenantStatus> = status.tenants.iter().collect();
        if tenants.len() > MOST_TOP {
            // Those that used most of the cores meanwhile.
            let used = |tenant: &TenantStatus| {
                let old = before.get(tenant.name.as_str()).map_or(0, |old| old.core_time_ns);
                tenant.core_time_ns.saturating_sub(old)
            };
            tenants.sort_by_key(|tenant| std::cmp::Reverse(used(tenant)));
        }
        let rows = tenants.into_iter().take(MOST_TOP).map(|tenant| {
            let old = before.get(tenant.name.as_str());
            let served = self.rate(tenant.served, old.map(|old| old.served));
            let bytes = self.rate(tenant.bytes, old.map(|old| old.bytes));
            let core = self.rate(tenant.core_time_ns, old.map(|old| old.core_time_ns));
            Row::new([
                one_line(&tenant.name),
                tenant.weight.to_string(),
                short(tenant.queued),
                per_second(served),
                bytes_per_second(bytes),
                core.map_or_else(|| "-".to_owned(), |ns| format!("{:.1}%", ns / 1e7)),
            ])
        });
        table(
            rows,
            &["TENANT", "WEIGHT", "QUEUED", "SERVED/s", "MOVED/s", "OF A CORE"],
            [18, 8, 8, 10, 12, 10].map(Constraint::Length),
        )
    }
}

/// What two lists of which one wants `one` lines and the other `other` have of `left`: all that they want, or no less
/// than half.
fn two_lists(left: u16, one: u16, other: u16) -> [u16; 2] {
    let first = one.min((left / 2).max(left.saturating_sub(other)));
    [first, other.min(left - first)]
}

/// The heaviest flows.
fn heavy_table(rows: Vec<Vec<String>>) -> Table<'static> {
    let rows = rows.into_iter().take(MOST_TOP);
    let rows = rows.map(|row| Row::new(row.iter().map(|cell| one_line(cell)).collect::<Vec<_>>()));
    let header = ["CORE", "HEAVY FLOW", "OF", "PACKETS/s", "BYTES/s", "OF BYTES", ""];
    table(rows, &header, [6, 44, 12, 9, 10, 8, 8].map(Constraint::Length))
}

/// The heaviest keys, in the last windows of analyses.
fn heaviest_table(rows: Vec<Vec<String>>) -> Table<'static> {
    let rows =
        rows.into_iter().take(MOST_TOP).map(|row| Row::new(row.iter().map(|cell| one_line(cell)).collect::<Vec<_>>()));
    table(rows, &["TOP OF", "BY", "KEY", "HAS", "LESS BY"], [18, 16, 44, 10, 10].map(Constraint::Length))
}

fn table(
    rows: impl Iterator<Item = Row<'static>>,
    header: &[&'static str],
    widths: impl IntoIterator<Item = Constraint>,
) -> Table<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Table::new(rows, widths).header(Row::new(header.to_vec()).style(bold))
}

fn per_second(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| scaled(rate, &["", "k", "M", "G"], 1000.0))
}

fn bytes_per_second(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| scaled(rate, &["B", "KiB", "MiB", "GiB", "TiB"], 1024.0))
}

/// Shows the status that `fetch` reads, every second, until the user types `q`, Escape or Ctrl-C.
pub fn run(mut fetch: impl FnMut() -> Result<NodeStatus, String>) -> std::io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let mut top = Top::default();
    let result = (|| {
        loop {
            let started = Instant::now();
            top.update(started, fetch());
            terminal.draw(|frame| top.draw(frame))?;
            while let Some(left) = INTERVAL.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) {
                if !event::poll(left)? {
                    break;
                }
                match event::read()? {
                    Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                        KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                        _ => {}
                    },
                    Event::Resize(..) => {
                        terminal.draw(|frame| top.draw(frame))?;
                    }
                    _ => {}
                }
            }
        }
    })();
    ratatui::try_restore()?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_lists_the_longer_has_what_the_shorter_leaves() {
        assert_eq!(two_lists(20, 3, 30), [3, 17]);
        assert_eq!(two_lists(20, 30, 3), [17, 3]);
        assert_eq!(two_lists(20, 30, 30), [10, 10]);
        assert_eq!(two_lists(20, 5, 6), [5, 6]);
        assert_eq!((two_lists(0, 5, 6), two_lists(9, 0, 0)), ([0, 0], [0, 0]));
    }
}
