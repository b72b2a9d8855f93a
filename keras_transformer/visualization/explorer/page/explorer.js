// The page: what is typed is translated, taken apart and shown.

import { AttentionMaps } from "./attention_maps.js";
import { find, percent, say } from "./dom.js";
import { ask, Latest } from "./questions.js";
import { TokenLines } from "./token_lines.js";
import { Variants } from "./variants.js";

const PAUSE = 250; // milliseconds without a key, after which what was typed is translated
const TOLD = 10; // tokens of each step

function begin({ name, missing }) {
  document.title = `${name} \u2013 attention explorer`;
  find("model").textContent = name;
  say(find("missing"), missing.explore ?? "");

  let prefix = []; // the ids that the translation is to begin with
  const maps = new AttentionMaps();
  const lines = new TokenLines({
    choose: (ids) => {
      prefix = ids;
      translate();
    },
    look: (place) => lines.shade(place === null ? null : maps.weightsOf(place)),
  });
  const variants = new Variants(missing, failed);
  const translations = new Latest("explore", { answered, failed });

  function translate() {
    const text = find("text").value.replace(/\s+/g, " ");
    if (!text.trim()) {
      translations.forget();
      for (const part of [lines, maps, variants]) part.hide();
      find("result").hidden = true;
      fresh("Type a sentence.");
      return;
    }
    find("status").textContent = "Translating \u2026";
    document.body.classList.add("waiting");
    translations.ask({ text, prefix, k: TOLD });
  }

  function answered(answer, request) {
    fresh(`The probability of this translation is ${percent(answer.log_prob)}.`);
    find("result").hidden = false;
    find("translation").textContent = answer.text;
    if (answer.steps) {
      lines.show(answer, request.prefix);
      maps.show(answer);
    }
    variants.show(request.text);
  }

  function failed(error) {
    fresh("");
    document.body.classList.add("stale"); // what is shown is of an earlier question
    say(find("error"), error.message);
    find("error").scrollIntoView({ block: "nearest" });
  }

  function fresh(sentence) {
    document.body.classList.remove("waiting", "stale");
    find("status").textContent = sentence;
    say(find("error"), "");
  }

  let pause;
  find("text").addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(() => {
      prefix = []; // what was chosen was chosen for another sentence
      translate();
    }, PAUSE);
  });
  if (find("text").value) translate(); // what a browser keeps when a page is loaded again
}

ask("model").then(begin, (error) => say(find("error"), error.message));
