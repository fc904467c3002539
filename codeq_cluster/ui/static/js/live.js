// Live: one stream of events while the page is seen; without one, the same parts every few seconds.

import { get, query } from "./http.js";

const POLL_MS = 4000;
const AGAIN_MS = 20000; // From losing the stream to trying for one again.
const PARTS = ["serving", "totals", "view", "series", "trouble"];

export class Feed {
  #view;
  #params;
  #on;
  #state;
  #source = null;
  #timer = 0;
  #since = 0;
  #closed = false;
  #begin;
  #streamAfter = 0;
  #asked = 0; // The number of the last poll.
  #taken = 0; // Answers of polls below this number come too late: something newer is shown.
  #hidden = () => (document.hidden ? this.#rest() : this.#open());

  // on(part, data) hears of every part, state("live" | "polling" | "lost") of how they come.
  constructor(view, params, on, state) {
    this.#view = view;
    this.#params = params;
    this.#on = on;
    this.#state = state;
    this.begun = new Promise((done) => {
      this.#begin = done;
    });
    document.addEventListener("visibilitychange", this.#hidden);
    this.#open();
  }

  // Asks at once, as after a change that this page has made.
  async refresh() {
    await this.#poll();
  }

  // Goes on with other parameters.
  show(params) {
    this.#params = params;
    this.#overtake();
    this.#rest();
    this.#open();
  }

  close() {
    this.#closed = true;
    document.removeEventListener("visibilitychange", this.#hidden);
    this.#rest();
  }

  #open() {
    if (this.#closed || this.#source || document.hidden) return;
    const source = new EventSource("/ui/api/live" + this.#query());
    this.#source = source;
    source.onopen = () => {
      clearTimeout(this.#timer);
      this.#streamAfter = 0;
      this.#state("live");
    };
    for (const part of PARTS) {
      source.addEventListener(part, (event) => {
        this.#overtake();
        this.#take(part, JSON.parse(event.data));
      });
    }
    source.onerror = () => {
      if (this.#source !== source) return;
      // A stream that broke is opened again by the browser, where it left off. One that was refused
      // is not: then it is asked for again after a while.
      if (source.readyState === EventSource.CLOSED) {
        this.#source = null;
        this.#streamAfter = Date.now() + AGAIN_MS;
      }
      this.#pollOn();
    };
  }

  #rest() {
    clearTimeout(this.#timer);
    if (this.#source) this.#source.close();
    this.#source = null;
  }

  #pollOn() {
    clearTimeout(this.#timer);
    this.#poll().then((answered) => {
      if (this.#closed || this.#streams()) return;
      this.#state(answered ? "polling" : "lost");
      if (Date.now() >= this.#streamAfter) this.#open();
      this.#timer = setTimeout(() => this.#pollOn(), POLL_MS);
    });
  }

  #streams() {
    return this.#source !== null && this.#source.readyState === EventSource.OPEN;
  }

  // The stream sends a part only when it changes: what an old answer said would stay.
  #overtake() {
    this.#taken = ++this.#asked;
  }

  async #poll() {
    const mine = ++this.#asked;
    try {
      const parts = await get("/now" + this.#query());
      if (this.#closed || mine < this.#taken) return true;
      this.#taken = mine;
      for (const part of PARTS) if (parts[part] !== undefined) this.#take(part, parts[part]);
      return true;
    } catch (failure) {
      return failure.status !== undefined;
    }
  }

  #take(part, data) {
    if (this.#closed) return;
    if (part === "series" && data) {
      const last = data.first + data.created.length - 1;
      if (last <= this.#since) return;
      this.#since = last;
    }
    this.#on(part, data);
    if (part === "trouble") this.#begin(); // The last part there is, of nothing as well.
  }

  #query() {
    return query({ view: this.#view, ...this.#params, since: this.#since || "" });
  }
}
