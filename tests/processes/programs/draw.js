// Draws random numbers, then again for a line of its input: of each source a line `kind name number`.
'use strict';
const crypto = require('crypto');
const draw = () => ({
    'library crypto.randomBytes': crypto.randomBytes(16).toString('hex'),
    'memory crypto.randomUUID': crypto.randomUUID(),
    'library crypto.randomUUID-without-buffer': crypto.randomUUID({disableEntropyCache: true}),
    'library crypto.getRandomValues': Buffer.from(crypto.getRandomValues(new Uint8Array(16))).toString('hex'),
    'memory Math.random': Math.random(),
});
draw();
console.log('ready');
process.stdin.once('data', () => {
    for (const [name, number] of Object.entries(draw())) console.log(name, number);
    process.exit(0);
});
