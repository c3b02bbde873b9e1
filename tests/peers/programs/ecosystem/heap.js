// A heap of 200,000 objects, two workers that share memory, two children.
const { Worker, isMainThread, workerData } = require('worker_threads');
const { execFileSync } = require('child_process');
if (isMainThread) {
  const all = Array.from({ length: 200000 }, (_, i) => ({ i, text: `value ${i}` }));
  const sum = all.reduce((sum, it) => sum + it.i, 0);
  const shared = new SharedArrayBuffer(4);
  const done = [0, 1].map(() => new Promise(resolve =>
    new Worker(__filename, { workerData: shared }).on('exit', resolve)));
  Promise.all(done).then(() => {
    const children = ['a', 'b'].filter(word => execFileSync('/bin/echo', [word]).toString().trim() === word);
    console.log('ok', sum, new Int32Array(shared)[0], children.length);
  });
} else {
  Atomics.add(new Int32Array(workerData), 0, 1);
}
