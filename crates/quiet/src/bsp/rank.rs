//! One rank: works, allocates and frees memory if requested, and meets the others.

use std::sync::atomic::Ordering;

use hiroma_sys::cpu::now_ns;
use hiroma_sys::quiet::affinity;
use hiroma_sys::quiet::noise::Probe;
use hiroma_sys::workload::Region;
use hiroma_units::PAGE;

use super::{BspError, Shared};
use crate::meter::work::{Loss, Worker, chunks_of};

/// Pages that are touched between two readings of the clock.
const PAGES: usize = 16;

/// Memory that is allocated, touched and freed in each step.
struct Memory {
    bytes: usize,
    /// How long touching [`PAGES`] usually takes.
    usual_ns: u64,
}

impl Memory {
    /// Measures how long touching takes.
    fn new(bytes: usize) -> Result<Memory, BspError> {
        let mut memory = Memory { bytes, usual_ns: u64::MAX };
        let region = memory.take()?;
        for offset in (0..bytes).step_by(PAGES * PAGE) {
            let start = now_ns();
            touch(&region, offset);
            memory.usual_ns = memory.usual_ns.min((now_ns() - start).max(1));
        }
        Ok(memory)
    }

    fn take(&self) -> Result<Region, BspError> {
        Region::map(self.bytes)
            .map_err(|source| BspError::Memory { alloc_bytes: self.bytes, source })
    }

    fn use_it(&self, worker: &mut Worker, loss: &mut Loss) -> Result<(), BspError> {
        let region = self.take()?;
        for offset in (0..self.bytes).step_by(PAGES * PAGE) {
            touch(&region, offset);
            worker.look(self.usual_ns, loss);
        }
        Ok(())
    }
}

fn touch(region: &Region, offset: usize) {
    let end = (offset + PAGES * PAGE).min(region.len());
    (offset..end).step_by(PAGE).for_each(|offset| region.write(offset, &[1]));
}

/// Runs the steps of a rank. Returns the loss over all of them.
pub(super) fn run(
    thread: u32,
    cpu: usize,
    probe: Option<&Probe>,
    shared: &Shared,
) -> Result<Loss, BspError> {
    let prepare = || {
        affinity::confine(0, &[cpu]).map_err(|source| BspError::Cpu { cpu, source })?;
        if let Some(probe) = probe {
            probe.measure_this_thread().map_err(|source| BspError::Cpu { cpu, source })?;
        }
        let bytes = shared.options.alloc_bytes.next_multiple_of(PAGE);
        let memory = (bytes > 0).then(|| Memory::new(bytes)).transpose()?;
        Ok((Worker::new(cpu, probe, shared.options.chunk_turns), memory))
    };
    let prepared = prepare();
    if prepared.is_err() {
        // Otherwise the other ranks would wait for this one forever.
        shared.gate.give_up();
    }
    if !shared.gate.pass() {
        return prepared.map(|_| Loss::default());
    }
    let (mut worker, memory) = prepared?;
    let chunks = chunks_of(shared.options.step.as_nanos() as u64);
    shared.chunk_turns.fetch_max(worker.chunk_turns(), Ordering::Relaxed);
    let mut all = Loss::default();
    let mut failed = None;
    loop {
        let mut loss = Loss::default();
        worker.begin();
        if let Some(memory) = memory.as_ref().filter(|_| failed.is_none()) {
            failed = memory.use_it(&mut worker, &mut loss).err();
        }
        worker.work(chunks, &mut loss);
        all.add(&loss);
        if failed.is_some() {
            shared.quit.store(true, Ordering::Relaxed);
        }
        if !shared.meet(thread, &loss) {
            break;
        }
    }
    failed.map_or(Ok(all), Err)
}
