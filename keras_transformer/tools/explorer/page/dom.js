// Creates and finds elements. The page never parses text as HTML: it sets textContent.

export function find(id) {
  return document.getElementById(id);
}

// make("button", { type: "button", "aria-pressed": true }, "text", element, ...)
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") {
      for (const [property, number] of Object.entries(value)) {
        element.style.setProperty(property, number);
      }
    } else if (value !== false && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children); // strings become text nodes
  return element;
}

export function setNote(element, sentence) {
  element.textContent = sentence;
  element.hidden = !sentence;
}

export function percent(logProb) {
  const share = 100 * Math.exp(logProb);
  if (share < 0.1) return "< 0.1 %";
  return `${share > 99.9 && share < 100 ? "> 99.9" : share.toFixed(1)} %`;
}

// A token as the page displays it: spaces become visible.
export function displayed(token) {
  return token.trim() ? token : "\u2423".repeat(token.length);
}
