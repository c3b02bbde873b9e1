// Numbers as people read them.

const digits = value => value === 0 ? "0"
  : value.toLocaleString("en", { maximumSignificantDigits: 3, useGrouping: false });

function scaled(value, base, units) {
  let unit = 0;
  while (Math.abs(value) >= base * .9995 && unit + 1 < units.length) {
    value /= base;
    unit++;
  }
  return digits(value) + " " + units[unit];
}

const duration = ns => scaled(ns, 1000, ["ns", "µs", "ms", "s"]);
const size = bytes => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]);
const perSecond = value => scaled(value, 1000, ["", "k", "M", "G"]).trim();
const whole = value => value.toLocaleString("en");
const share = part => part >= .9995 ? "100 %" : part > 0 && part < .0005 ? "< 0.1 %" : (100 * part).toFixed(1) + " %";

// Every digit of a time, so that two that differ look different.
const exactTime = ns => ns < 1e3 ? `${ns} ns` : ns < 1e9 ? `${+(ns / 1e6).toFixed(6)} ms` : `${(ns / 1e9).toFixed(9)} s`;

const hex = (page, low = 0) => "0x" + (BigInt(page) * 4096n + BigInt(low)).toString(16);
const shortHex = page => hex(page).replace(/^0x.+(?=.{8})/, "…");
