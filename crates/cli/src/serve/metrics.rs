//! What a server tells Prometheus.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Weak};

use hiroma_far_server::{
    Activity, Refused, RequestKind, ServerHandle, ServerStats, TenantStats, TimesTaken,
};
use hiroma_metrics::{Distribution, Labels, Source, Unit, Writer};
use hiroma_pool::MemberView;
use hiroma_sys::quiet::memory::{pressure, recent_pressure};

use super::Place;

/// Clients that have series of their own, those with most memory first.
const CLIENTS_MAX: usize = 64;

/// The figures of one server.
pub struct Figures(Weak<Place>);

impl Figures {
    pub(super) fn of(place: &Arc<Place>) -> Figures {
        Figures(Arc::downgrade(place))
    }
}

fn label(name: &'static str, value: impl Into<String>) -> Labels {
    vec![(name, value.into())]
}

impl Source for Figures {
    fn write(&self, writer: &mut Writer) -> fmt::Result {
        let Some(place) = self.0.upgrade() else { return Ok(()) };
        if let Some(server) = place.server.get() {
            memory(writer, server)?;
            clients(writer, &server.stats())?;
            tenants(writer, &server.stats())?;
            requests(writer, server.activity())?;
        }
        let members = place.member().as_ref().map(hiroma_pool::Membership::members);
        if let Some(members) = members {
            pool(writer, &members)?;
        }
        machine(writer)
    }
}

fn memory(writer: &mut Writer, server: &ServerHandle) -> fmt::Result {
    let stats = server.stats();
    for (name, help, bytes) in [
        ("server_lent", "Memory that is lent", stats.capacity_bytes),
        ("server_used", "Of this, what has data of clients", stats.used_bytes),
        ("server_spilled", "Of what is used, what is on the disk", stats.spilled_bytes),
        ("server_promised", "Of this, what is set aside for clients", stats.reserved_bytes),
    ] {
        writer.gauge(name, help, Some(Unit::Bytes), [(vec![], bytes)])?;
    }
    let help = "Memory that was given back because the machine needed it";
    let given = [(vec![], server.given_back_bytes())];
    writer.counter("server_given_back", help, Some(Unit::Bytes), given)?;
    let short = [(vec![], u64::from(stats.is_short))];
    writer.gauge("server_short", "The machine needs its memory", None, short)?;
    let draining = u64::from(server.is_draining());
    writer.gauge("server_draining", "Takes no new blocks", None, [(vec![], draining)])
}

fn clients(writer: &mut Writer, stats: &ServerStats) -> fmt::Result {
    let connections: usize = stats.sessions.iter().map(|session| session.connections).sum();
    writer.gauge("server_clients", "Clients", None, [(vec![], stats.sessions.len())])?;
    let help = "Connections of all clients";
    writer.gauge("server_connections", help, None, [(vec![], connections)])?;
    let shared: usize = stats.sessions.iter().map(|session| session.shared_connections).sum();
    let help = "Of these, in memory that client and server share";
    writer.gauge("server_shared_connections", help, None, [(vec![], shared)])?;
    let mut most: Vec<_> = stats.sessions.iter().collect();
    most.sort_by_key(|session| (std::cmp::Reverse(session.usage.used_chunks), session.number));
    most.truncate(CLIENTS_MAX);
    let bytes = |chunks: u64| chunks * hiroma_units::EXTENT as u64;
    let series = |of: fn(&hiroma_far_server::SessionStats) -> u64| {
        let one = move |session: &&hiroma_far_server::SessionStats| {
            let labels =
                vec![("client", session.number.to_string()), ("peer", session.peer.clone())];
            (labels, bytes(of(session)))
        };
        most.iter().map(one).collect::<Vec<_>>()
    };
    let used = series(|session| session.usage.used_chunks);
    let promised = series(|session| session.usage.reserved_chunks);
    let unit = || Some(Unit::Bytes);
    writer.gauge("server_client_used", "Memory that has data of a client", unit(), used)?;
    writer.gauge("server_client_promised", "Memory set aside for a client", unit(), promised)
}

/// Memory by tenant, those with most first.
fn tenants(writer: &mut Writer, stats: &ServerStats) -> fmt::Result {
    let mut most: Vec<_> = stats.tenants.iter().collect();
    most.sort_by_key(|tenant| (std::cmp::Reverse(tenant.used_bytes), tenant.number));
    most.truncate(CLIENTS_MAX);
    let series = |of: fn(&TenantStats) -> Option<u64>| {
        let one = move |tenant: &&TenantStats| Some((label("tenant", &*tenant.name), of(tenant)?));
        most.iter().filter_map(one).collect::<Vec<_>>()
    };
    let help = "Memory with data of a tenant; unnamed ones have the address of their machine";
    let used = series(|tenant| Some(tenant.used_bytes));
    writer.gauge("server_tenant_used", help, Some(Unit::Bytes), used)?;
    let quota = series(|tenant| tenant.quota_bytes);
    writer.gauge("server_tenant_quota", "What a tenant may have", Some(Unit::Bytes), quota)
}

fn requests(writer: &mut Writer, activity: &Activity) -> fmt::Result {
    let times: Vec<_> =
        RequestKind::ALL.iter().map(|&kind| (kind.name(), activity.times(kind))).collect();
    let counts = times.iter().map(|(kind, times)| (label("kind", *kind), times.count()));
    writer.counter("server_requests", "Requests that were served", None, counts)?;
    let spread = times.iter().map(|(kind, times)| (label("kind", *kind), distribution(times)));
    let help = "Time from the header of a request until its reply was on its way";
    writer.histogram("server_request_duration", help, spread)?;
    for (name, help, bytes) in [
        ("server_received", "Content of blocks from clients", activity.received_bytes()),
        ("server_sent", "Content of blocks to clients", activity.sent_bytes()),
    ] {
        writer.counter(name, help, Some(Unit::Bytes), [(vec![], bytes)])?;
    }
    let refusals = Refused::ALL.map(|why| (label("reason", why.name()), activity.refusals(why)));
    writer.counter("server_refusals", "Clients and requests that were refused", None, refusals)
}

fn distribution(times: &TimesTaken) -> Distribution {
    let seconds = |ns: u64| ns as f64 / 1e9;
    Distribution {
        buckets: times.steps.iter().map(|&(end, count)| (seconds(end), count)).collect(),
        above: times.above,
        sum: seconds(times.sum_ns),
    }
}

fn pool(writer: &mut Writer, members: &[MemberView]) -> fmt::Result {
    let count = |state| members.iter().filter(|member| member.state() == state).count();
    let counts = MemberView::STATES.map(|state| (label("state", state), count(state)));
    writer.gauge("pool_members", "Members as this one sees them", None, counts)
}

fn machine(writer: &mut Writer) -> fmt::Result {
    let root = Path::new("/");
    if let Some(recent) = recent_pressure(root) {
        let help = "Share of the last 10 s in which threads waited for memory (PSI, avg10)";
        let values = [("some", recent.some), ("full", recent.full)];
        let unit = Some(Unit::Other("ratio".to_owned()));
        let values = values.map(|(kind, share)| (label("kind", kind), share));
        writer.gauge("machine_memory_pressure", help, unit, values)?;
    }
    if let Some(pressure) = pressure(root) {
        let help = "Time in which threads waited for memory (PSI, total)";
        let values = [("some", pressure.some_us), ("full", pressure.full_us)];
        let values = values.map(|(kind, us)| (label("kind", kind), us as f64 / 1e6));
        writer.seconds("machine_memory_waiting", help, values)?;
    }
    Ok(())
}
