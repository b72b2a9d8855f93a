// The tokens read and written, and what else each of those written might have been.

import { moveByArrows } from "./arrow_keys.js";
import { find, make, percent, say, shown } from "./dom.js";

const UNCHOOSABLE = 0; // the id of padding, after which nothing is said of what follows

export class TokenLines {
  // `choose` is called with the ids that the translation is to begin with; `look` with the place
  // of a token that is looked at, or null.
  constructor({ choose, look }) {
    this.choose = choose;
    this.look = look;
    this.open = null; // the place whose alternatives are shown
    find("release").addEventListener("click", () => {
      this.choose([]);
      find("text").focus();
    });
    find("alternatives").addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close(true);
    });
  }

  show({ source, steps }, prefix) {
    this.steps = steps;
    this.focusNext = this.open !== null && prefix.length === this.open + 1 ? this.open : null;
    this.close(false);
    this.sourceTokens = source.map((token) => make("span", { role: "listitem", dir: "auto" }, shown(token)));
    find("source").replaceChildren(...this.sourceTokens);
    this.buttons = steps.map((step, place) => this.button(step, place, place < prefix.length));
    find("target").replaceChildren(...this.buttons);
    const focused = this.buttons[this.focusNext ?? 0];
    moveByArrows(find("target"), [this.buttons], focused);
    if (this.focusNext !== null) focused?.focus();
    const number = Math.min(prefix.length, steps.length);
    find("chosen").hidden = !number;
    find("chosen").firstElementChild.textContent =
      `The first ${number === 1 ? "token is" : `${number} tokens are`} as you chose. `;
    find("tokens").hidden = !steps.length;
  }

  button(step, place, chosen) {
    const button = make(
      "button",
      {
        type: "button",
        class: chosen ? "token chosen" : "token",
        dir: "auto",
        "aria-expanded": "false",
        "aria-controls": "alternatives",
        "aria-label":
          `token ${place + 1}: ${shown(step.token)}, ${percent(step.log_prob)}` +
          (chosen ? ", as chosen" : ""),
        style: { "--weight": Math.exp(step.log_prob) },
      },
      shown(step.token),
    );
    button.addEventListener("click", () => this.toggle(place));
    for (const event of ["pointerenter", "focus"]) {
      button.addEventListener(event, () => this.look(place));
    }
    for (const event of ["pointerleave", "blur"]) {
      button.addEventListener(event, () => this.look(null));
    }
    return button;
  }

  toggle(place) {
    if (this.open === place) return this.close(true);
    this.close(false);
    this.open = place;
    this.buttons[place].setAttribute("aria-expanded", "true");
    const step = this.steps[place];
    find("alternatives-heading").textContent = `Token ${place + 1}, instead of ${shown(step.token)}`;
    const choices = step.best.map((one) => this.choice(one, place));
    find("alternatives").querySelector("ol").replaceChildren(...choices.map((choice) => make("li", {}, choice)));
    find("alternatives").hidden = false;
    choices.find((choice) => !choice.disabled)?.focus();
  }

  choice(one, place) {
    const taken = one.id === this.steps[place].id;
    const choice = make(
      "button",
      { type: "button", class: "choice", style: { "--weight": Math.exp(one.log_prob) } },
      make("span", { dir: "auto" }, shown(one.token)),
      make("span", { class: "number" }, `${percent(one.log_prob)}${taken ? ", taken" : ""}`),
    );
    choice.disabled = one.id === UNCHOOSABLE;
    choice.addEventListener("click", () => {
      const before = this.steps.slice(0, place).map((step) => step.id);
      this.choose([...before, one.id]);
    });
    return choice;
  }

  close(focus) {
    if (this.open === null) return;
    const button = this.buttons[this.open];
    button.setAttribute("aria-expanded", "false");
    this.open = null;
    find("alternatives").hidden = true;
    if (focus) button.focus();
  }

  // Shades the tokens read by weights, one for each; none: not at all.
  shade(weights) {
    this.sourceTokens.forEach((token, i) => token.style.setProperty("--weight", weights?.[i] ?? 0));
  }

  hide() {
    this.open = null;
    find("alternatives").hidden = true;
    find("tokens").hidden = true;
  }
}
