const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const crypto = require('crypto');
const work = k => { const list = []; for (let i = 0; i < 250000; i++) list.push({ i, s: 's' + i * k }); return crypto.createHash('sha256').update(JSON.stringify(list)).digest('hex').slice(0, 16); };
if (isMainThread) {
  const shared = new SharedArrayBuffer(64 << 20), view = new Uint32Array(shared);
  view.fill(7);
  Promise.all([1, 2, 3, 4].map(k => new Promise((done, fail) => { const w = new Worker(__filename, { workerData: { k, shared } }); w.on('message', done); w.on('error', fail); })))
    .then(all => console.log(all, view.reduce((a, b) => a + b, 0)));
} else {
  const view = new Uint32Array(workerData.shared);
  for (let i = workerData.k; i < view.length; i += 4) Atomics.add(view, i, workerData.k);
  parentPort.postMessage(work(workerData.k));
}
