"use strict";

const KEYS = { 1: "1", 2: "2", 0: "equal", e: "equal", s: "skip" };
const WAIT = 300; // ms between two looks for the next pair
let pair = null; // the names of the segments that are shown
let busy = false;
let ended = false;

const note = (text) => { document.getElementById("note").textContent = text; };

async function call(path, content) {
  const post = { method: "POST", headers: { "X-RoboLearn": "1" }, body: JSON.stringify(content ?? {}) };
  const response = await fetch(path, content === undefined ? {} : post);
  const said = await response.json().catch(() => ({}));
  if (said.error) throw new Error(said.error, { cause: "said" });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return said;
}

async function film(id, name) {
  const video = document.querySelector(`#${id} video`);
  const response = await fetch(`videos/${name}.mp4`);
  if (!response.ok) throw new Error(`there is no film of ${name}`);
  const old = video.src;
  video.src = URL.createObjectURL(await response.blob()); // in memory, so that it can loop
  if (old) URL.revokeObjectURL(old);
}

async function show(state) {
  document.getElementById("progress").textContent =
    `${state.answered} of ${state.wanted} answered` +
    (state.accuracy === null ? "" : `, learned reward right about ${Math.round(100 * state.accuracy)} %`);
  if (state.done || state.ended) {
    ended = true;
    pair = null;
    note(state.done ? "All pairs are answered. This page can be closed."
      : "Ended. The same command continues here. This page can be closed.");
    return;
  }
  if (!state.pair) {
    pair = null;
    note("preparing the next pair ...");
    setTimeout(refresh, WAIT);
    return;
  }
  if (pair === null || pair.join() !== state.pair.join()) {
    await Promise.all([film("first", state.pair[0]), film("second", state.pair[1])]);
    const videos = document.querySelectorAll("video");
    videos.forEach((video) => { video.currentTime = 0; video.play().catch(() => {}); });
    pair = state.pair;
  }
  document.body.dataset.pair = pair.join(" ");
  note("");
}

async function attempt(work) {
  if (busy || ended) return;
  busy = true;
  try {
    await show(await work());
  } catch (error) {
    note(error.cause === "said" ? error.message : `${error.message}: is robolearn prefer still running?`);
    setTimeout(refresh, (error.cause === "said" ? 20 : 5) * WAIT);
  } finally {
    busy = false;
  }
}

const refresh = () => attempt(() => call("state"));
const answer = (given) => {
  if (pair === null) return;
  const asked = pair;
  attempt(() => call("answer", { pair: asked, answer: given }));
};
const perform = (what) => attempt(() => call(what, {}));

document.addEventListener("keydown", (event) => {
  if (event.repeat || event.ctrlKey || event.altKey || event.metaKey) return;
  const key = event.key.toLowerCase();
  if (key in KEYS) answer(KEYS[key]);
  else if (key === "u") perform("undo");
  else if (key === "q") perform("quit");
});
document.querySelectorAll("button").forEach((button) => button.addEventListener("click", () => {
  button.blur(); // a later key must not press it again
  if (button.dataset.answer) answer(button.dataset.answer);
  else perform(button.dataset.do);
}));
refresh();
