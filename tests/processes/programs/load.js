// Work of many kinds that checks its own results, and says the same in each run: load.js ROUNDS.
'use strict';
const { spawn } = require('child_process');
const { pbkdf2, createHash } = require('crypto');
const http = require('http');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');

const digest = text => createHash('sha256').update(text).digest('hex');

if (!isMainThread) {
    let text = `worker ${workerData.number}`;
    let objects = [];
    for (let i = 0; i < workerData.rounds * 3000; i++) {
        objects.push({ i, text: `${i}` });
        if (i % 300 === 0) {
            text = digest(text + objects.map(one => one.text).join());
            objects = [];
        }
    }
    parentPort.postMessage(text);
} else {
    const rounds = Number(process.argv[2]);
    const failures = [];
    let signals = 0, ticks = 0, waiting = () => {};
    process.on('SIGALRM', () => { signals++; waiting(); });
    const timer = setInterval(() => ticks++, 1);
    const server = http.createServer((request, response) => {
        let body = '';
        request.on('data', part => body += part).on('end', () => response.end(digest(body)));
    });
    const ask = text => new Promise((done, failed) => {
        const request = http.request({ port: server.address().port, method: 'POST', agent }, response => {
            let body = '';
            response.on('data', part => body += part).on('end', () => done(body));
        });
        request.on('error', failed).end(text);
    });
    const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
    const child = () => new Promise(done => {
        spawn('/bin/sh', ['-c', `kill -ALRM ${process.pid}; exit 7`]).on('exit', done);
    });
    const hash = text => new Promise((done, failed) =>
        pbkdf2(text, 'salt', 2000, 32, 'sha256', (error, key) => error ? failed(error) : done(key.toString('hex'))));
    const signal = count => new Promise(done => {
        waiting = () => signals >= count && done();
        waiting();
    });
    (async () => {
        await new Promise(done => server.listen(0, '127.0.0.1', done));
        const workers = [0, 1].map(number => new Promise((done, failed) =>
            new Worker(__filename, { workerData: { number, rounds } }).on('message', done).on('error', failed)));
        let all = '';
        for (let round = 0; round < rounds; round++) {
            const texts = [0, 1, 2, 3].map(i => `${round} ${i}`.repeat(200));
            const answers = await Promise.all(texts.map(ask));
            if (answers.join() !== texts.map(digest).join()) failures.push(`round ${round}: another answer`);
            const code = await child();
            if (code !== 7) failures.push(`round ${round}: exit code ${code}`);
            await signal(round + 1);
            if (signals !== round + 1) failures.push(`round ${round}: ${signals} signals`);
            all = digest(all + answers.join() + (await Promise.all(texts.map(hash))).join());
        }
        const ends = await Promise.all(workers);
        clearInterval(timer);
        console.log(all, ends.join(' '), ticks > rounds);
        console.log(failures.join('\n') || 'right');
        process.exit(0);
    })().catch(error => { console.log(`failed: ${error}`); process.exit(1); });
}
