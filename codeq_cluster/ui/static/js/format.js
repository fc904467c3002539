// Numbers, sizes, spans and instants as people read them.

const whole = new Intl.NumberFormat("en");
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];

export function count(number) {
  return whole.format(number);
}

// 1234567 → 1.23 M: for tiles and axes, where the exact number has no room.
export function short(number) {
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (Math.abs(number) >= size) {
      const scaled = number / (unit === " k" ? 1e3 : size);
      return scaled.toFixed(scaled < 10 ? 2 : scaled < 100 ? 1 : 0) + unit;
    }
  }
  return Number.isInteger(number) ? whole.format(number) : number.toFixed(number < 10 ? 2 : 1);
}

export function rate(number) {
  return number === 0 ? "0" : number < 10 ? number.toFixed(number < 0.1 ? 2 : 1) : short(Math.round(number));
}

export function bytes(number) {
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (number >= size) return (number / size).toFixed(number / size < 10 ? 1 : 0) + " " + unit;
  }
  return number + " B";
}

export function span(seconds) {
  if (seconds < 0) return "0 s";
  if (seconds < 10 && !Number.isInteger(seconds)) return seconds.toFixed(seconds < 1 ? 2 : 1) + " s";
  let left = Math.round(seconds);
  if (left < 60) return left + " s";
  const parts = [];
  for (const [size, unit] of UNITS) {
    if (left >= size || parts.length) {
      parts.push(Math.floor(left / size) + " " + unit);
      left %= size;
    }
  }
  return parts.filter((part) => !part.startsWith("0 ")).slice(0, 2).join(" ");
}

// Of the past: a later instant is of a clock that is ahead of the browser's. `until` is of the future.
export function ago(instant, now = Date.now()) {
  const seconds = (now - Date.parse(instant)) / 1000;
  return seconds < 1 ? "now" : span(Math.floor(seconds)) + " ago";
}

export function until(instant, now = Date.now()) {
  const seconds = (Date.parse(instant) - now) / 1000;
  return seconds <= 0 ? "due" : "in " + span(Math.ceil(seconds));
}

const pad = (number, digits = 2) => String(number).padStart(digits, "0");

export function clock(milliseconds, seconds = false) {
  const at = new Date(milliseconds);
  return pad(at.getHours()) + ":" + pad(at.getMinutes()) + (seconds ? ":" + pad(at.getSeconds()) : "");
}

// The one form of an instant: the browser's time, as YYYY-MM-DD HH:MM:SS.
export function stamp(instant) {
  const at = new Date(instant);
  return at.getFullYear() + "-" + pad(at.getMonth() + 1) + "-" + pad(at.getDate()) + " " + clock(at, true);
}

export function plural(number, one, many = one + "s") {
  return count(number) + " " + (number === 1 ? one : many);
}
