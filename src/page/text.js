// How texts and amounts are shown. Whatever a server or a client has written may hold control characters and such as turn the
// direction of what follows: they become signs that can be seen.

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/gu;

function sign(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

// Of more than one line: ends of lines and tabs stay.
export const visible = (text) => String(text).replace(/\r\n/g, "\n").replace(HIDDEN, sign);
export const oneLine = (text) => visible(text).replace(/\n/g, "␊").replace(/\t/g, "␉");

export function cut(text, most) {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
  let at = 0;
  let value = count;
  while (value >= 1024 && at < UNITS.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${value < 10 && at > 0 ? value.toFixed(1) : Math.round(value)} ${UNITS[at]}`;
}

export const percent = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} %`;

export function duration(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

export const ago = (time) => `${duration(Date.now() - Date.parse(time))} ago`;
export const until = (time) => (Date.parse(time) > Date.now() + 500 ? `in ${duration(Date.parse(time) - Date.now())}` : "now");
export const clock = (time) => new Date(time).toLocaleTimeString([], { hour12: false });
