// The address axis: bands of used addresses one above the other, with breaks in between.
//
// A place on it is a number from 0 (lowest) to 1. Spaces that are not shown have no bands. Bands of one space that meet
// differ in scale only: there is no break between them.

const BREAK_SHARE = .022;

class AddressAxis {
  constructor(spaces, shown) {
    const bands = [];
    spaces.forEach((space, index) => {
      if (!shown(index)) return;
      space.bands.forEach(([start, end, height], nth) => {
        const before = nth && space.bands[nth - 1][1];
        bands.push({ space: index, start, end, height, gap: nth ? start - before : 0, first: nth === 0 });
      });
    });
    const isBroken = (band, index) => index && (band.first || band.gap > 0);
    const breaks = bands.filter(isBroken).length;
    const room = 1 - Math.min(.5, breaks * BREAK_SHARE);
    const gap = breaks ? (1 - room) / breaks : 0;
    const total = bands.reduce((sum, band) => sum + band.height, 0) || 1;
    let at = 0;
    bands.forEach((band, index) => {
      band.isBroken = isBroken(band, index);
      if (band.isBroken) at += gap;
      band.low = at;
      band.high = at += band.height / total * room;
      band.scale = (band.high - band.low) / (band.end - band.start);
    });
    this.bands = bands;
    this.ofSpace = spaces.map((_, index) => bands.filter(band => band.space === index));
  }

  // The place of a page (and a fraction); NaN if it is not on the axis.
  place(space, page) {
    for (const band of this.ofSpace[space]) {
      if (page < band.end) return page >= band.start ? band.low + (page - band.start) * band.scale : NaN;
    }
    return NaN;
  }

  // The band and page at a place; undefined in a break.
  at(place) {
    const band = this.bands.find(band => band.low <= place && place < band.high);
    return band && { band, page: band.start + (place - band.low) / band.scale };
  }

  // Where labels go between two places so that `most` fit: round addresses.
  ticks(low, high, most) {
    const apart = (high - low) / most;
    const ticks = [];
    for (const band of this.bands) {
      if (band.high < low || band.low > high) continue;
      const step = 2 ** Math.max(0, Math.ceil(Math.log2(apart / band.scale)));
      const first = Math.max(band.start, band.start + (low - band.low) / band.scale);
      const last = Math.min(band.end, band.start + (high - band.low) / band.scale);
      const candidates = first === band.start ? [band.start] : [];
      for (let page = Math.ceil(first / step) * step; page <= last; page += step) candidates.push(page);
      for (const page of candidates) {
        const place = band.low + (page - band.start) * band.scale;
        const before = ticks.at(-1);
        if (!before || place - before.place >= apart * .8) ticks.push({ place, page });
      }
    }
    return ticks;
  }
}
