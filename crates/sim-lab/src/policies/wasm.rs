//! Placement policies as WebAssembly modules. `docs/guide/own-policies.md` documents the interface.
//!
//! Each node has an instance of its own, made at its first decision: nodes share nothing. The
//! module has no clock, no files and no other random numbers than those of the node's generator, is
//! interpreted, and is paid by the instruction: the same module gives the same answers, and fails
//! at the same instruction, on any machine.

use std::sync::Arc;

use hiroma_policy::placement::{
    NodePolicies, Peer, PlacementPolicy, PolicyError, PolicySource, Request, Rng,
};
use wasmi::core::TrapCode;
use wasmi::errors::ErrorKind;
use wasmi::{
    Caller, Config, Engine, Error, ExternType, Instance, Linker, Memory, Module, Store,
    StoreLimits, StoreLimitsBuilder, TypedFunc,
};

/// Versions of the interface: what the module's `placement_abi` may return.
pub const ABIS: [i32; 2] = [1, 2];
/// Instructions that one decision may take, and the start of an instance.
pub const FUEL: u64 = 10_000_000;
/// Memory of one instance, bytes.
pub const MEMORY_BYTES_MAX: usize = 16 << 20;
/// Words of one peer in the module's buffer, little-endian: free frames, capacity, hops, flags, and
/// from version 2 on the time in which it takes a page, ns.
const PEER_WORDS: usize = 5;
/// Flag of a peer that the page must not go to.
pub const FLAG_AVOID: u32 = 1;
/// The answer that sends the page to disk.
pub const DISK: i32 = -1;

/// Functions that a module has to export, with what they are for.
const EXPORTS: [(&str, &str); 4] = [
    ("memory", "its memory"),
    ("placement_abi", "() -> i32: the version of the interface, 1 or 2"),
    ("peers_buffer", "(peers: i32) -> i32: the address of its buffer for so many peers"),
    ("choose", "(peers: i32) -> i32: the number of the peer, or -1 for disk"),
];

/// A module that was checked.
#[derive(Clone, Debug)]
pub struct Wasm {
    module: Arc<Module>,
    linker: Arc<Linker<Host>>,
}

/// What the host keeps for an instance.
#[derive(Debug)]
struct Host {
    rng: Rng,
    limits: StoreLimits,
}

impl Wasm {
    /// Checks a module, in binary or in text form, by starting it once.
    ///
    /// # Errors
    /// If it is no module or lacks something: what, and what to do.
    pub fn new(content: &[u8]) -> Result<Wasm, PolicyError> {
        let mut config = Config::default();
        config.consume_fuel(true);
        let engine = Engine::new(&config);
        let module = Module::new(&engine, content).map_err(|error| {
            PolicyError(format!(
                "not a WebAssembly module: {}; build it for wasm32-unknown-unknown, or write it as text (.wat)",
                one_line(&error)
            ))
        })?;
        check_exports(&module)?;
        check_imports(&module)?;
        let mut linker = Linker::new(&engine);
        linker
            .func_wrap("hiroma", "random_below", random_below)
            .expect("nothing else has that name");
        let wasm = Wasm { module: Arc::new(module), linker: Arc::new(linker) };
        wasm.instance()?;
        Ok(wasm)
    }

    fn instance(&self) -> Result<Node, PolicyError> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(MEMORY_BYTES_MAX)
            .memories(1)
            .tables(4)
            .table_elements(1 << 16)
            .instances(1)
            .build();
        let mut store = Store::new(self.module.engine(), Host { rng: Rng::new(0), limits });
        store.limiter(|host| &mut host.limits);
        store.set_fuel(FUEL).expect("fuel is counted");
        let instance = self
            .linker
            .instantiate(&mut store, &self.module)
            .and_then(|instance| instance.start(&mut store))
            .map_err(|error| failed("at its start", &error))?;
        let memory = instance.get_memory(&store, "memory").ok_or_else(|| missing("memory"))?;
        let abi: TypedFunc<(), i32> = function(&instance, &store, "placement_abi")?;
        let version =
            abi.call(&mut store, ()).map_err(|error| failed("in placement_abi", &error))?;
        if !ABIS.contains(&version) {
            let [old, new] = ABIS;
            return Err(PolicyError(format!(
                "is of version {version} of the interface, and this program has versions {old} and {new}: build it for one \
                 of them"
            )));
        }
        Ok(Node {
            memory,
            peers_buffer: function(&instance, &store, "peers_buffer")?,
            choose: function(&instance, &store, "choose")?,
            store,
            words: if version == 1 { PEER_WORDS - 1 } else { PEER_WORDS },
            buffer: None,
            bytes: Vec::new(),
        })
    }
}

impl PolicySource for Wasm {
    fn start(&self) -> Result<Box<dyn NodePolicies>, PolicyError> {
        Ok(Box::new(self.clone()))
    }
}

impl NodePolicies for Wasm {
    fn node(&self) -> Result<Box<dyn PlacementPolicy>, PolicyError> {
        Ok(Box::new(self.instance()?))
    }
}

/// The instance of one node.
struct Node {
    store: Store<Host>,
    memory: Memory,
    peers_buffer: TypedFunc<i32, i32>,
    choose: TypedFunc<i32, i32>,
    /// Words of one peer, in the module's version of the interface.
    words: usize,
    /// Address of the module's buffer, and for how many peers it was asked for.
    buffer: Option<(usize, i32)>,
    /// What is written there; reused.
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("buffer", &self.buffer).finish_non_exhaustive()
    }
}

impl Node {
    fn write_peers(&mut self, request: &Request<'_>, peers: i32) -> Result<(), PolicyError> {
        let buffer = match self.buffer {
            Some((buffer, room)) if room == peers => buffer,
            _ => {
                let address = self
                    .peers_buffer
                    .call(&mut self.store, peers)
                    .map_err(|error| failed("in peers_buffer", &error))?;
                self.buffer.insert((address as u32 as usize, peers)).0
            }
        };
        self.bytes.clear();
        for peer in request.by_number() {
            let flags = if peer.avoid { FLAG_AVOID } else { 0 };
            let words: [u32; PEER_WORDS] =
                [peer.free, peer.capacity, peer.hops.into(), flags, peer.page_ns];
            for word in &words[..self.words] {
                self.bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
        self.memory.write(&mut self.store, buffer, &self.bytes).map_err(|_| {
            PolicyError(format!(
                "has its buffer for {peers} peers at address {buffer}, and {} bytes from there are beyond its memory: \
                 peers_buffer has to return the address of {} bytes for each peer",
                self.bytes.len(),
                self.words * 4
            ))
        })
    }
}

impl PlacementPolicy for Node {
    fn choose(
        &mut self,
        request: &Request<'_>,
        rng: &mut Rng,
    ) -> Result<Option<Peer>, PolicyError> {
        let peers = request.len() as i32;
        self.store.set_fuel(FUEL).expect("fuel is counted");
        self.write_peers(request, peers)?;
        self.store.data_mut().rng = rng.clone();
        let answer = self.choose.call(&mut self.store, peers);
        *rng = self.store.data().rng.clone();
        match answer.map_err(|error| failed("in choose", &error))? {
            DISK => Ok(None),
            answer if (0..peers).contains(&answer) => Ok(Some(Peer(answer as u16))),
            answer => Err(PolicyError(format!(
                "answered {answer}: choose has to return 0 to {} for a peer, or {DISK} for disk",
                peers - 1
            ))),
        }
    }
}

/// The host's function: a number below `bound` from the node's generator.
fn random_below(mut caller: Caller<'_, Host>, bound: u32) -> Result<u32, Error> {
    if bound == 0 {
        return Err(Error::new("random_below(0): there is no number below 0"));
    }
    Ok(caller.data_mut().rng.below(bound))
}

fn function<P: wasmi::WasmParams, R: wasmi::WasmResults>(
    instance: &Instance,
    store: &Store<Host>,
    name: &str,
) -> Result<TypedFunc<P, R>, PolicyError> {
    instance.get_typed_func(store, name).map_err(|_| missing(name))
}

fn missing(name: &str) -> PolicyError {
    let about = EXPORTS.iter().find(|(export, _)| *export == name).map_or("", |(_, about)| about);
    PolicyError(format!("does not export `{name}`, {about}"))
}

fn check_exports(module: &Module) -> Result<(), PolicyError> {
    for (name, _) in EXPORTS {
        let found = module.exports().find(|export| export.name() == name);
        let fits = found.is_some_and(|export| match export.ty() {
            ExternType::Memory(_) => name == "memory",
            ExternType::Func(_) => name != "memory",
            _ => false,
        });
        if !fits {
            return Err(missing(name));
        }
    }
    Ok(())
}

fn check_imports(module: &Module) -> Result<(), PolicyError> {
    let known = |module: &str, name: &str| module == "hiroma" && name == "random_below";
    match module.imports().find(|import| !known(import.module(), import.name())) {
        None => Ok(()),
        Some(import) => Err(PolicyError(format!(
            "imports `{}.{}`, which a policy does not have: the only import is `hiroma.random_below`; build it without \
             WASI and without the standard library's files and clocks",
            import.module(),
            import.name()
        ))),
    }
}

fn failed(place: &str, error: &Error) -> PolicyError {
    let out_of_fuel = error.as_trap_code() == Some(TrapCode::OutOfFuel)
        || matches!(error.kind(), ErrorKind::Fuel(_));
    PolicyError(if out_of_fuel {
        format!(
            "used up its fuel {place}: a decision has {FUEL} instructions; look at fewer peers, or end the loop"
        )
    } else if error.as_trap_code() == Some(TrapCode::GrowthOperationLimited)
        || matches!(error.kind(), ErrorKind::Memory(_) | ErrorKind::Instantiation(_))
    {
        format!(
            "failed {place}: {}; an instance may have {} MiB of memory",
            one_line(error),
            MEMORY_BYTES_MAX >> 20
        )
    } else {
        format!("failed {place}: {}", one_line(error))
    })
}

fn one_line(error: &Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
